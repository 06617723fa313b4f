//! Real Kubernetes clusters (the "ground truth"), started by `.ci/ground`, on which tests run instead of embedded API servers
//! and simulated members.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use crate::repository_root;

/// Environment variable with the Kubernetes version of the real clusters, such as `1.36`. If it is not set, tests use the
/// embedded API servers and simulated members.
const VERSION_VARIABLE: &str = "CROWSNEST_GROUND_KUBERNETES";
const AUDIT_POLICY_FLAG: &str = "--audit-policy-file";
const EXEC_FLAG: &str = "--exec";
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

/// The minor version of Kubernetes of the real clusters; `None` if tests do not run on them.
pub fn kubernetes_minor() -> Option<u32> {
    env::var(VERSION_VARIABLE).ok()?.split('.').nth(1)?.parse().ok()
}

/// Command for a cluster without nodes, as for a control plane. `args` may contain flags of `.ci/ground up`. `None` if
/// [`VERSION_VARIABLE`] is not set.
pub fn control_plane(data: &Path, args: &[&str]) -> io::Result<Option<Cluster>> {
    cluster("cp", data, &[&["--members", "0"], args].concat())
}

/// Command for a cluster with a scheduler and nodes whose pods kwok makes ready. `args` are those of `crowsnest
/// member`. `None` if [`VERSION_VARIABLE`] is not set.
pub fn member(name: &str, data: &Path, args: &[&str]) -> io::Result<Option<Cluster>> {
    let stages = repository_root().join("tests/ground/stages/conformance.yaml").display().to_string();
    let recorded = RECORDED_MEMBERS.iter().find(|(member, ..)| *member == name);
    let flags = match (args, recorded) {
        ([EXEC_FLAG], _) => vec![EXEC_FLAG],
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

/// Like [`member`], but the pods run commands and have a log. Commands are processes on this machine, and their standard
/// input is never closed. Their environment contains `CLUSTER`, the member's name, and `CONTAINER_LOG`, the file with
/// the log of all pods in the format of container runtimes.
pub fn member_with_exec(name: &str, data: &Path) -> io::Result<Option<Cluster>> {
    member(name, data, &[EXEC_FLAG])
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
