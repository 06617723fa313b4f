//! TCP forwarder on the loopback address in front of a database. While it is closed, the database is unreachable
//! through it.

use std::io;
use std::net::SocketAddr;

use anyhow::Context;
use crowsnest_apiserver::serve::accept_connection;
use crowsnest_component_base::tasks::Tasks;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A running forwarder.
pub(super) struct Forwarder {
    address: SocketAddr,
    is_open: watch::Sender<bool>,
    tasks: Tasks,
}

impl Forwarder {
    /// Forwards connections to a host and port.
    pub(super) async fn start(host: String, port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on loopback")?;
        let address = listener.local_addr()?;
        let (is_open, tasks) = (watch::Sender::new(true), Tasks::default());
        let connections = forward_connections(listener, (host, port), is_open.subscribe());
        let stop = tasks.stop_token().clone();
        tasks.spawn_until_stop("forwarder", async move {
            // Connections end with this future.
            stop.run_until_cancelled(connections).await;
        });
        Ok(Self { address, is_open, tasks })
    }

    /// Address to connect to instead of that of the database.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and new ones as soon as they are made.
    pub(super) fn close(&self) {
        self.is_open.send_replace(false);
    }

    /// Forwards new connections again.
    pub(super) fn open(&self) {
        self.is_open.send_replace(true);
    }

    pub(super) async fn stop(self) {
        self.tasks.stop().await;
    }
}

async fn forward_connections(listener: TcpListener, database: (String, u16), is_open: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            // While the forwarder is closed, connections are dropped. The port stays in use, so that no other process can
            // take it.
            (client, _) = accept_connection(&listener) => if *is_open.borrow() {
                connections.spawn(forward(client, database.clone(), is_open.clone()));
            },
        }
    }
}

/// Forwards a connection until one of its ends is closed, or the forwarder.
async fn forward(mut client: TcpStream, (host, port): (String, u16), mut is_open: watch::Receiver<bool>) {
    let copy = async {
        let mut database = TcpStream::connect((host.as_str(), port)).await?;
        tokio::io::copy_bidirectional(&mut client, &mut database).await.map(drop)
    };
    let closed = async { is_open.wait_for(|is_open| !is_open).await.is_ok() };
    let result: io::Result<()> = tokio::select! {
        result = copy => result,
        _ = closed => Ok(()),
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection to the database ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Connects through the forwarder, sends a byte in both directions, and returns both ends.
    async fn connect(forwarder: &Forwarder, database: &TcpListener) -> (TcpStream, TcpStream) {
        let mut client = TcpStream::connect(forwarder.address()).await.unwrap();
        client.write_all(b"?").await.unwrap();
        let (mut connection, _) = database.accept().await.unwrap();
        assert_eq!(connection.read_u8().await.unwrap(), b'?');
        connection.write_all(b"!").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'!');
        (client, connection)
    }

    #[tokio::test]
    async fn connections_end_while_the_forwarder_is_closed() {
        let database = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = database.local_addr().unwrap();
        let forwarder = Forwarder::start(address.ip().to_string(), address.port()).await.unwrap();
        let (mut first, mut first_in_database) = connect(&forwarder, &database).await;
        forwarder.close();
        assert!(first.read_u8().await.is_err());
        assert!(first_in_database.read_u8().await.is_err());
        let mut second = TcpStream::connect(forwarder.address()).await.unwrap();
        assert!(second.read_u8().await.is_err());
        forwarder.open();
        let (mut third, mut third_in_database) = connect(&forwarder, &database).await;
        forwarder.stop().await;
        assert!(third.read_u8().await.is_err());
        assert!(third_in_database.read_u8().await.is_err());
    }
}
