//! `crowsnest member`: a simulated member in its own process, to be joined or registered by a control plane. Its data
//! directory has the same layout as that of `up`.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::config::MemberConfig;
use super::kubeconfigs::Kubeconfigs;
use super::members::{self, PORTS_FILE};
use crowsnest_process::data_dir::DataDir;
use crowsnest_process::signals::StopSignals;

/// Runs until the process receives a stop signal. Once the member serves requests, it prints a line with the path of
/// its kubeconfig.
pub async fn run(config: MemberConfig) -> anyhow::Result<ExitCode> {
    let mut stop = StopSignals::new()?;
    let dir = DataDir::open(&config.storage.data_dir, config.storage.reset)?;
    let mut ports: BTreeMap<String, u16> = dir.read_state(PORTS_FILE).unwrap_or_default();
    let listen = config.listen.unwrap_or_else(|| members::local_address(ports.get(config.name.as_str()).copied()));
    if listen.ip().is_unspecified() {
        bail!("invalid --listen {listen}: expected an address at which a control plane can reach this machine");
    }
    let member = members::start_member(&config.name, None, &dir, listen, config.is_conformance).await?;
    ports.insert(member.name().to_owned(), member.address().port());
    dir.write_state(PORTS_FILE, &ports)?;
    let mut kubeconfigs = Kubeconfigs::new(dir.dir("kubeconfigs")?);
    kubeconfigs.add(member.name(), &member.kubeconfig()?)?;
    let kubeconfig = kubeconfigs.finish()?;
    writeln!(std::io::stdout(), "export KUBECONFIG={}", kubeconfig.display())?;
    let load = async {
        if let Some(load) = config.load {
            let report = member.start_load(load).await.context("cannot create the member's load")?;
            tracing::info!(written = report.written, "created synthetic pods");
        }
        std::future::pending::<anyhow::Result<()>>().await
    };
    let result = tokio::select! {
        () = stop.wait() => Ok(()),
        result = load => result,
    };
    member.stop().await.context("cannot stop the member")?;
    result.map(|()| ExitCode::SUCCESS)
}
