"""Messages of the gRPC services that the agent uses, as .proto files and as protoc's output.

May import: protobuf. After a change: `python -m grpc_tools.protoc -I . --python_out=. hetsched/agent/rpc/*.proto`.
Never: parts of an interface that the agent does not use.
"""
