"""An ssh server on this machine that runs what it is asked to by the shell, for tests of --on."""

import asyncio
import sys
from pathlib import Path

import asyncssh


async def answer(process):
    """Run a command line with what the client sends, and send what it prints."""
    given = await process.stdin.read()
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_shell(
        process.command, stdin=pipe, stdout=pipe, stderr=pipe
    )
    out, err = await child.communicate(given)
    process.stdout.write(out)
    process.stderr.write(err)
    process.exit(child.returncode)


async def serve(folder: Path):
    """Serve until this process ends; write the port, the keys and an ssh config into a folder."""
    host, client = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    client.write_private_key(str(folder / "key"))
    (folder / "key").chmod(0o600)
    client.write_public_key(str(folder / "key.pub"))
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[host], authorized_client_keys=str(folder / "key.pub"),
        process_factory=answer, encoding=None,
    )  # fmt: skip
    (folder / "config").write_text(
        f"Host gpu\n  HostName 127.0.0.1\n  Port {server.get_port()}\n  User me\n"
        f"  IdentityFile {folder}/key\n  StrictHostKeyChecking no\n"
        f"  UserKnownHostsFile {folder}/known\n  LogLevel ERROR\n  BatchMode yes\n"
    )
    (folder / "ready").touch()
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
