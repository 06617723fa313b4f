//! `crowsnest member`: a simulated member in a process of its own, which no control plane knows until somebody joins or registers it.
//! Its data directory is laid out as that of `up` is.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use crowsnest_apimachinery::names::ClusterName;

use super::Stop;
use super::datadir::DataDir;
use super::kubeconfigs::Kubeconfigs;
use super::members::{self, PORTS};
use crate::commands::member::MemberArgs;
use crate::commands::up::Profile;

/// Beside the data directory of `up`, which has a lock of its own.
fn beside(default: &Path, name: &ClusterName) -> PathBuf {
    let folder = default.file_name().map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
    default.with_file_name(format!("{folder}-{name}"))
}

/// Runs until told to stop. The first line on standard output says that it serves, and where its kubeconfig is.
pub(crate) async fn run(args: MemberArgs) -> anyhow::Result<ExitCode> {
    let mut stop = Stop::new()?;
    let path = args.data_dir.unwrap_or_else(|| beside(&crowsnest_cli::data_dir::default_data_dir(), &args.name));
    let dir = DataDir::open(&path, args.reset)?;
    let mut ports: BTreeMap<String, u16> = dir.read_state(PORTS).unwrap_or_default();
    let listen = args.listen.unwrap_or_else(|| members::local(ports.get(args.name.as_str()).copied()));
    if listen.ip().is_unspecified() {
        bail!("--listen {listen} is no address that a control plane could ask: name the one that this machine has");
    }
    let conformance = args.profile == Some(Profile::Conformance);
    let member = members::start_one(&args.name, &dir, listen, conformance).await?;
    ports.insert(member.name().to_owned(), member.address().port());
    dir.write_state(PORTS, &ports)?;
    let mut files = Kubeconfigs::new(dir.dir("kubeconfigs")?);
    files.add(member.name(), &member.kubeconfig()?)?;
    let kubeconfig = files.finish()?;
    writeln!(std::io::stdout(), "export KUBECONFIG={}", kubeconfig.display())?;
    let filled = async {
        if let Some(load) = args.load {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_data_directory_beside_that_of_the_fleet() {
        let name = "oslo".parse().unwrap();
        let found = beside(Path::new("/home/me/.local/share/crowsnest"), &name);
        assert_eq!(found, Path::new("/home/me/.local/share/crowsnest-oslo"));
        assert_eq!(beside(Path::new("crowsnest-data"), &name), Path::new("crowsnest-data-oslo"));
    }
}
