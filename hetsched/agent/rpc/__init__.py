"""Lives here: the messages of the sockets that the agent speaks gRPC on, as .proto files and as protoc makes them.

May import: protobuf. After a change: `python -m grpc_tools.protoc -I . --python_out=. hetsched/agent/rpc/*.proto`.
Never: more of a foreign interface than the agent uses.
"""
