//! A bare API server: `apiserver --data-dir DIR --listen 127.0.0.1:0 --kubeconfig FILE`.
//!
//! Without `--data-dir`, objects are kept in memory only. Writes the kubeconfig of a cluster administrator once it
//! listens.

use std::path::PathBuf;

use crowsnest_kube_apiserver::{ApiServer, Config, Data};
use crowsnest_registry::storage::Durability;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (mut data, mut listen, mut kubeconfig) = (Data::Memory, "127.0.0.1:0".to_owned(), None);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--data-dir" => data = Data::Directory { path: value.into(), durability: Durability::Process },
            "--listen" => listen = value,
            "--kubeconfig" => kubeconfig = Some(PathBuf::from(value)),
            other => return Err(format!("unknown flag {other}").into()),
        }
    }
    let server = ApiServer::start(Config::new("apiserver", data)).await?;
    let listener = TcpListener::bind(listen).await?;
    let url = format!("https://{}", listener.local_addr()?);
    if let Some(path) = kubeconfig {
        std::fs::write(path, server.kubeconfig("admin", &["system:masters".to_owned()], &url)?)?;
    }
    let stop = CancellationToken::new();
    let serving = tokio::spawn({
        let (server, stop) = (server.clone(), stop.clone());
        async move { server.serve(listener, stop).await }
    });
    tokio::signal::ctrl_c().await?;
    stop.cancel();
    server.stop().await?;
    serving.await??;
    Ok(())
}
