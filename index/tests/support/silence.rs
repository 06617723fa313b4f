//! A proxy for a local port that can stall: it then keeps all connections open without traffic, unnoticed by either
//! end.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub struct Silence {
    port: u16,
    silent: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Silence {
    pub async fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (silent, heard) = watch::channel(false);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let heard = heard.clone();
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let (near_read, near_write) = near.into_split();
                    let (far_read, far_write) = far.into_split();
                    tokio::join!(carry(near_read, far_write, heard.clone()), carry(far_read, near_write, heard));
                });
            }
        });
        Self { port: own, silent, accepting }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn silence(&self, silent: bool) {
        self.silent.send_replace(silent);
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Forwards one direction until either end closes.
async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut silent: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(read) = from.read(&mut buffer).await else { return };
        if silent.wait_for(|silent| !silent).await.is_err() || read == 0 {
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
