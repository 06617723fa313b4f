//! `crowsnest member`: a simulated member in a process of its own, which no control plane knows until somebody joins or registers it.
//! Its data directory is laid out as that of `up` is.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::config::MemberConfig;
use super::kubeconfigs::Kubeconfigs;
use super::members::{self, PORTS};
use crowsnest_process::data_dir::DataDir;
use crowsnest_process::signals::Stop;

/// Runs until told to stop. The first line on standard output says that it serves, and where its kubeconfig is.
pub async fn run(config: MemberConfig) -> anyhow::Result<ExitCode> {
    let mut stop = Stop::new()?;
    let dir = DataDir::open(&config.place.data_dir, config.place.reset)?;
    let mut ports: BTreeMap<String, u16> = dir.read_state(PORTS).unwrap_or_default();
    let listen = config.listen.unwrap_or_else(|| members::local(ports.get(config.name.as_str()).copied()));
    if listen.ip().is_unspecified() {
        bail!("--listen {listen} is no address that a control plane could ask: name the one that this machine has");
    }
    let member = members::start_one(&config.name, None, &dir, listen, config.is_conformance).await?;
    ports.insert(member.name().to_owned(), member.address().port());
    dir.write_state(PORTS, &ports)?;
    let mut files = Kubeconfigs::new(dir.dir("kubeconfigs")?);
    files.add(member.name(), &member.kubeconfig()?)?;
    let kubeconfig = files.finish()?;
    writeln!(std::io::stdout(), "export KUBECONFIG={}", kubeconfig.display())?;
    let filled = async {
        if let Some(load) = config.load {
            let report = member.start_load(load).await.context("filling the member")?;
            tracing::info!(written = report.written, "synthetic pods");
        }
        std::future::pending::<anyhow::Result<()>>().await
    };
    let ended = tokio::select! {
        () = stop.wait() => Ok(()),
        failed = filled => failed,
    };
    member.stop().await.context("stopping the member")?;
    ended.map(|()| ExitCode::SUCCESS)
}
