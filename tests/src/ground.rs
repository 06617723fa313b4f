//! The ground truth for tests: real Kubernetes clusters, started by `.ci/ground`, in place of embedded API servers and
//! simulated members.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use crate::repository_root;

/// Environment variable with the Kubernetes version of the clusters, such as `1.36`. Without it, tests use the embedded
/// servers.
const VERSION_VARIABLE: &str = "CROWSNEST_GROUND_KUBERNETES";
const AUDIT_POLICY_FLAG: &str = "--audit-policy-file";
/// The embedded API server's default audit policy.
const DEFAULT_AUDIT_POLICY: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";
/// Node sizes of the members on which the conformance scenarios were recorded: member, CPUs, memory.
const RECORDED_MEMBERS: [(&str, &str, &str); 3] = [("m1", "2", "16Gi"), ("m2", "4", "32Gi"), ("m3", "8", "64Gi")];

/// A real cluster. `command` starts it, prints one line when it is ready, and runs until it is killed.
pub struct Cluster {
    pub command: Command,
    pub kubeconfig: PathBuf,
    pub audit_log: PathBuf,
}

/// True if tests run on real clusters.
pub fn uses_real_clusters() -> bool {
    env::var_os(VERSION_VARIABLE).is_some()
}

/// Command for a cluster without nodes, as for a control plane. `args` also accepts flags of `.ci/ground up`. None
/// without [`VERSION_VARIABLE`].
pub fn control_plane(data: &Path, args: &[&str]) -> io::Result<Option<Cluster>> {
    cluster("cp", data, &[&["--members", "0"], args].concat())
}

/// Command for a cluster with a scheduler and nodes whose pods kwok makes ready. `args` are those of `crowsnest
/// member`. None without [`VERSION_VARIABLE`].
pub fn member(name: &str, data: &Path, args: &[&str]) -> io::Result<Option<Cluster>> {
    let stages = repository_root().join("tests/ground/stages/conformance.yaml").display().to_string();
    let recorded = RECORDED_MEMBERS.iter().find(|(member, ..)| *member == name);
    let flags = match (args, recorded) {
        ([], _) => Vec::new(),
        (["--profile", "conformance"], Some((_, cpu, memory))) => {
            vec!["--cpu", cpu, "--memory", memory, "--stages", &stages]
        }
        _ => {
            return Err(io::Error::other(format!(
                "no real cluster can replace the simulated member {name} with {args:?}"
            )));
        }
    };
    cluster(name, data, &[&["--control-plane=false", "--names", name], flags.as_slice()].concat())
}

fn cluster(name: &str, data: &Path, args: &[&str]) -> io::Result<Option<Cluster>> {
    let Some(version) = env::var_os(VERSION_VARIABLE) else { return Ok(None) };
    let mut command = Command::new(repository_root().join(".ci/ground"));
    command.args(["up", "--dir"]).arg(data).arg("--kubernetes").arg(version).args(args);
    if !args.contains(&AUDIT_POLICY_FLAG) {
        let policy = data.with_extension("audit-policy.yaml");
        fs::write(&policy, DEFAULT_AUDIT_POLICY)?;
        command.arg(AUDIT_POLICY_FLAG).arg(policy);
    }
    let kubeconfig = data.join(format!("kubeconfigs/{name}.kubeconfig"));
    Ok(Some(Cluster { command, kubeconfig, audit_log: data.join(name).join("audit.log") }))
}
