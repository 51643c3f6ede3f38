//! `burn-server [--port 3000]`: the real burn-remote 0.21 server over WebSocket, on the CPU backend.
//!
//! Prints `listening 127.0.0.1:PORT` once the port accepts; `--port 0` takes a free one.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use burn_flex::{Flex, FlexDevice};
use burn_interop::arguments::{Arguments, refuse};
use burn_remote::server::start_websocket_async;

fn main() {
    let arguments = Arguments::parse(std::env::args().skip(1));
    let port = free_port(arguments.option("--port", 3000));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built");
    runtime.block_on(async {
        let announcement = tokio::spawn(announce(port));
        start_websocket_async::<Flex>(FlexDevice, port).await;
        announcement.abort();
    });
    // A connection that is still open does not keep the process alive.
    runtime.shutdown_background();
}

/// The port, or one that is free for 0. Burn's server ignores a port in use and returns, so look beforehand.
fn free_port(port: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        .unwrap_or_else(|error| refuse(&format!("port {port}: {error}")));
    listener.local_addr().expect("a bound address").port()
}

async fn announce(port: u16) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    while tokio::net::TcpStream::connect(address).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("listening {address}");
}
