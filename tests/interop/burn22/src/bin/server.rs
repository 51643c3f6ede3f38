//! `burn22-server [--port 3000] [--devices 2] [--iroh]`: the real burn-remote 0.22 server on the CPU backend.
//!
//! Prints `listening ws://127.0.0.1:PORT` before it accepts, with `--iroh` `listening iroh://NODE-ID?addr=…`;
//! `--port 0` takes a free one. All devices are the CPU.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use burn_interop_22::arguments::{Arguments, refuse};
use burn_tensor::Device;
use burn_tensor::server::{
    IrohIdentity, IrohRelays, IrohTransport, RemoteServer, Transport, WebSocketTransport,
};

fn main() {
    let arguments = Arguments::parse(std::env::args().skip(1));
    let port: u16 = arguments.option("--port", 3000);
    let count: usize = arguments.option("--devices", 2);
    let transport: Transport = if arguments.switch("--iroh") {
        iroh(port).into()
    } else {
        websocket(port).into()
    };
    let server = RemoteServer::new((0..count).map(|_| Device::flex()));
    if let Err(error) = server.serve(transport) {
        refuse(&format!("the server stopped: {error}"));
    }
}

fn websocket(port: u16) -> WebSocketTransport {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .unwrap_or_else(|error| refuse(&format!("port {port}: {error}")));
    let address = listener.local_addr().expect("a bound address");
    println!("listening ws://{address}");
    WebSocketTransport::from_listener(listener)
}

/// A transport with a new identity and without relays.
fn iroh(port: u16) -> IrohTransport {
    // The transport takes a number, so find a free one, and free it again.
    let port = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))
        .and_then(|socket| socket.local_addr())
        .unwrap_or_else(|error| refuse(&format!("port {port}: {error}")))
        .port();
    let identity = IrohIdentity::random();
    println!("listening iroh://{}?addr=127.0.0.1:{port}", identity.id());
    IrohTransport::new(identity)
        .with_relays(IrohRelays::Disabled)
        .with_port(port)
}
