//! `burn22-server [--port 3000] [--devices 2]`: the real burn-remote 0.22 server over WebSocket, on the CPU backend.
//!
//! Prints `listening 127.0.0.1:PORT` before it accepts; `--port 0` takes a free one. All devices are the CPU.

use std::net::{Ipv4Addr, TcpListener};

use burn_interop_22::arguments::{Arguments, refuse};
use burn_tensor::Device;
use burn_tensor::server::{RemoteServer, WebSocketTransport};

fn main() {
    let arguments = Arguments::parse(std::env::args().skip(1));
    let port: u16 = arguments.option("--port", 3000);
    let count: usize = arguments.option("--devices", 2);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .unwrap_or_else(|error| refuse(&format!("port {port}: {error}")));
    println!(
        "listening {}",
        listener.local_addr().expect("a bound address")
    );
    let server = RemoteServer::new((0..count).map(|_| Device::flex()));
    if let Err(error) = server.serve(WebSocketTransport::from_listener(listener)) {
        refuse(&format!("the server stopped: {error}"));
    }
}
