"""Messages of the gRPC sockets that the agent uses, as .proto files and as protoc's output.

May import: protobuf. After a change: `python -m grpc_tools.protoc -I . --python_out=. hetsched/agent/rpc/*.proto`.
Never: more of a foreign interface than the agent uses.
"""
