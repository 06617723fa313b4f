//! A proxy for a local port that can stall: it then keeps all connections open without traffic, unnoticed by either
//! end.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub struct StallingProxy {
    port: u16,
    stalled: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl StallingProxy {
    pub async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port_of_proxy = listener.local_addr().unwrap().port();
        let (stalled, stalled_receiver) = watch::channel(false);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let stalled_receiver = stalled_receiver.clone();
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let (near_read, near_write) = near.into_split();
                    let (far_read, far_write) = far.into_split();
                    tokio::join!(
                        forward(near_read, far_write, stalled_receiver.clone()),
                        forward(far_read, near_write, stalled_receiver)
                    );
                });
            }
        });
        Self { port: port_of_proxy, stalled, accepting }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set_stalled(&self, stalled: bool) {
        self.stalled.send_replace(stalled);
    }
}

impl Drop for StallingProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Forwards one direction until either end closes.
async fn forward(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut stalled: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(read) = from.read(&mut buffer).await else { return };
        if stalled.wait_for(|stalled| !stalled).await.is_err() || read == 0 {
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
