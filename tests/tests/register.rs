//! `crowsnest register`: with a token and the hash of the control plane's authority, the agent connects its cluster and
//! gets certificates, and their renewals, with permissions for its own cluster only. A request for the name of an
//! existing cluster is not approved automatically.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, Member, binary, free_port, wait_for};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::json;

/// A running agent; killed when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // The child may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_cluster_registers_itself_with_a_token() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut remote = Member::start("east", &dir.path().join("theirs"), &[])?;
    let fleet = Fleet::start(&dir.path().join("ours"), &["--no-members"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let east = remote.kubeconfig.clone();
    let checks = || -> Result<()> {
        let output = fleet.crowsnest(&["token", "create", "--print-register-command"])?;
        let register_args: Vec<&str> = output.out.split_whitespace().skip(1).collect();
        ensure!(register_args.first() == Some(&"register"), "{output:?}");
        check_wrong_credentials(&register_args, &east)?;
        check_existing_secret(&register_args, &kubectl.with_kubeconfig(&east), &east)?;

        let _agent = Agent(start_agent(&register_args, &east, dir.path())?);
        let read_log = || std::fs::read_to_string(dir.path().join("agent.log")).unwrap_or_default();
        wait_for("cluster oslo to be ready", || {
            let readiness =
                ["get", "cluster", "oslo", "-o", "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}"];
            Ok(kubectl.run(&readiness, "")?.out == "True")
        })
        .with_context(read_log)?;
        let server = fleet.server()?;
        let proxy_url = format!("{server}/apis/cluster.karmada.io/v1alpha1/clusters/oslo/proxy");
        kubectl
            .with_flags(&["--server", &proxy_url])
            .run_until(&["get", "nodes", "-o", "name"], |out| out.contains("node/east-node-1"))?;
        check_permissions(&kubectl, dir.path())?;
        check_automatic_approval(&kubectl, dir.path())?;
        check_renewal_in_file(&kubectl, &east, dir.path())?;
        check_renewal_in_secret(&kubectl, &east, dir.path())?;
        check_existing_name(&register_args, &east, &kubectl)
    };
    checks().with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success() && remote.stop()?.success());
    Ok(())
}

/// Command that registers the member as the cluster oslo.
fn register_command(register_args: &[&str], member: &Path, extra_args: &[&str]) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.args(register_args).args(["--cluster-name", "oslo", "--kubeconfig"]).arg(member).args(extra_args);
    Ok(command)
}

/// Registration fails with an unknown token, and with the hash of another authority.
fn check_wrong_credentials(register_args: &[&str], member: &Path) -> Result<()> {
    let register_with = |flag: &str, value: &str| -> Result<CommandOutput> {
        let index =
            register_args.iter().position(|word| *word == flag).context("the command does not have the flag")? + 1;
        let mut register_args = register_args.to_vec();
        register_args[index] = value;
        CommandOutput::parse(&register_command(&register_args, member, &["--run"])?.output()?)
    };
    let output = register_with("--token", "abcdef.0123456789abcdef")?;
    ensure!(output.code == Some(1) && output.err.contains("is not signed with token abcdef"), "{output:?}");
    let output = register_with("--discovery-token-ca-cert-hash", &format!("sha256:{}", "0".repeat(64)))?;
    ensure!(output.code == Some(1) && output.err.contains("wrong control plane"), "{output:?}");
    Ok(())
}

fn start_agent(register_args: &[&str], member: &Path, folder: &Path) -> Result<Child> {
    let kubeconfig = folder.join("agent.kubeconfig").display().to_string();
    let mut command = register_command(register_args, member, &["--run", "--agent-kubeconfig", &kubeconfig])?;
    let log = File::create(folder.join("agent.log"))?;
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?)
}

/// The agent's kubeconfig gives access to its own cluster only.
fn check_permissions(kubectl: &Kubectl, folder: &Path) -> Result<()> {
    let agent = kubectl.with_kubeconfig(&folder.join("agent.kubeconfig"));
    agent.expect_output(&["get", "secrets", "-A"], "", 1, "User \"system:karmada:agent:oslo\" cannot list")?;
    agent.expect_output(&["get", "secret", "oslo", "-n", "karmada-cluster"], "", 1, "cannot get")?;
    agent.expect_output(&["auth", "can-i", "patch", "clusters/oslo"], "", 0, "yes")?;
    agent.expect_output(&["auth", "can-i", "patch", "clusters/other"], "", 1, "no")?;
    Ok(())
}

/// A request of an agent for its own identity is approved automatically, although its cluster exists; a request for
/// another identity is not.
fn check_automatic_approval(kubectl: &Kubectl, folder: &Path) -> Result<()> {
    let agent = kubectl.with_kubeconfig(&folder.join("agent.kubeconfig"));
    for (name, cluster) in [("stolen", "other"), ("next", "oslo")] {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:karmada:agents");
        params.distinguished_name.push(DnType::CommonName, format!("system:karmada:agent:{cluster}"));
        let pem = params.serialize_request(&KeyPair::generate()?)?.pem()?;
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {"signerName": "kubernetes.io/kube-apiserver-client", "request": STANDARD.encode(pem),
                "usages": ["digital signature", "client auth"]},
        });
        agent.run_ok(&["create", "-f", "-"], &request.to_string())?;
    }
    let csr = agent.run_until(&["get", "csr", "next", "-o", "json"], |out| out.contains("\"certificate\""))?;
    ensure!(csr.contains("Auto approving self karmada agent certificate"), "{csr}");
    let stolen = agent.run_ok(&["get", "csr", "stolen", "-o", "jsonpath={.status}"], "")?;
    ensure!(stolen == "{}" || stolen.is_empty(), "an agent received a certificate of another agent: {stolen}");
    kubectl.run_ok(&["delete", "csr", "stolen"], "").map(drop)
}

/// A certificate that is due is renewed in the kubeconfig, with the same identity.
fn check_renewal_in_file(kubectl: &Kubectl, member: &Path, folder: &Path) -> Result<()> {
    let kubeconfig = folder.join("agent.kubeconfig");
    let before = std::fs::read_to_string(&kubeconfig)?;
    let mut command = Command::new(binary()?);
    command.args(["agent", "--cluster-name", "oslo", "--control-plane-kubeconfig"]).arg(&kubeconfig);
    command.arg("--kubeconfig").arg(member).args(["--enable-cert-rotation", "--cert-rotation-checking-interval", "1h"]);
    // Renews a certificate of any age.
    command.args(["--cert-rotation-remaining-time-threshold", "0.9999999999"]);
    let log = File::create(folder.join("renewing.log"))?;
    let _agent = Agent(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?);
    let read_log = || std::fs::read_to_string(folder.join("renewing.log")).unwrap_or_default();
    wait_for("a new certificate", || Ok(std::fs::read_to_string(&kubeconfig)? != before)).with_context(read_log)?;
    let agent = kubectl.with_kubeconfig(&kubeconfig);
    agent.expect_output(&["get", "secrets", "-A"], "", 1, "User \"system:karmada:agent:oslo\" cannot list")?;
    agent.expect_output(&["auth", "can-i", "patch", "clusters/oslo"], "", 0, "yes").map(drop)
}

/// With a kubeconfig mounted from a Secret, as in the agent's chart, the Secret is updated instead of the file. Also
/// checks the agent's probes, metrics and log format.
fn check_renewal_in_secret(kubectl: &Kubectl, member: &Path, folder: &Path) -> Result<()> {
    let (mounted, east) = (folder.join("agent.kubeconfig"), kubectl.with_kubeconfig(member));
    let before = std::fs::read_to_string(&mounted)?;
    let from = format!("--from-file={}", mounted.display());
    east.run_ok(&["create", "secret", "generic", "kept", "-n", "default", &from], "")?;
    let [health, metrics] = [free_address()?, free_address()?];
    let mut command = Command::new(binary()?);
    command.args(["-v", "agent", "--cluster-name", "oslo", "--control-plane-kubeconfig"]).arg(&mounted);
    command.arg("--kubeconfig").arg(member).args(["--control-plane-kubeconfig-secret", "default/kept"]);
    // The options are set by flags, by a file and by environment variables.
    let settings = folder.join("agent.yaml");
    std::fs::write(&settings, "enable-cert-rotation: true\ncert-rotation-checking-interval: 1h\nlog-format: json\n")?;
    command.arg("--config").arg(&settings).env("CROWSNEST_CERT_ROTATION_REMAINING_TIME_THRESHOLD", "0.9999999999");
    command.args(["--health-probe-bind-address", &health, "--metrics-bind-address", &metrics]);
    let log = folder.join("kept.log");
    let agent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
    let _agent = Agent(agent);
    let read_log = || std::fs::read_to_string(&log).unwrap_or_default();
    let read_secret = || -> Result<String> {
        let kubeconfig = ["get", "secret", "kept", "-n", "default", "-o", "jsonpath={.data.agent\\.kubeconfig}"];
        Ok(String::from_utf8(STANDARD.decode(east.run_ok(&kubeconfig, "")?)?)?)
    };
    wait_for("a new certificate in the Secret", || Ok(read_secret()? != before)).with_context(read_log)?;
    ensure!(std::fs::read_to_string(&mounted)? == before, "the mounted file was changed");
    let next = folder.join("kept.kubeconfig");
    std::fs::write(&next, read_secret()?)?;
    kubectl.with_kubeconfig(&next).expect_output(&["auth", "can-i", "patch", "clusters/oslo"], "", 0, "yes")?;

    wait_for("the tunnel to be open", || Ok(http_get(&health, "/readyz")?.ends_with("\r\n\r\nok")))
        .with_context(read_log)?;
    let exposition = http_get(&metrics, "/metrics")?;
    for sample in ["karmada_build_info{", "rest_client_requests_total{code=\"101\"", "crowsnest_agent_tunnel_open 1\n"]
    {
        ensure!(exposition.contains(sample), "no {sample} in {exposition}");
    }
    for line in read_log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))?;
        ensure!(line["message"].is_string() && line["level"].is_string() && line["timestamp"].is_string(), "{line}");
    }
    Ok(())
}

fn free_address() -> Result<String> {
    Ok(format!("127.0.0.1:{}", free_port()?))
}

/// Sends a GET request; returns the response including its head. Empty if the connection fails.
fn http_get(address: &str, path: &str) -> Result<String> {
    let mut response = String::new();
    let Ok(mut stream) = TcpStream::connect(address) else { return Ok(response) };
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    stream.read_to_string(&mut response)?;
    Ok(response)
}

/// A Secret that `register` did not create is not overwritten.
fn check_existing_secret(register_args: &[&str], in_member: &Kubectl, member: &Path) -> Result<()> {
    in_member.run_ok(&["create", "namespace", "karmada-system"], "")?;
    let secret = ["secret", "generic", "karmada-kubeconfig", "-n", "karmada-system"];
    in_member.run_ok(&[&["create"], &secret[..], &["--from-literal=theirs=1"]].concat(), "")?;
    let register_dry_run = || {
        CommandOutput::parse(
            &register_command(register_args, member, &["--agent-image", "crowsnest:any", "--dry-run"])?.output()?,
        )
    };
    let output = register_dry_run()?;
    let expected = "secret karmada-system/karmada-kubeconfig exists and was not created by";
    ensure!(output.code == Some(1) && output.err.contains(expected), "{output:?}");
    in_member.run_ok(&["delete", "secret", "karmada-kubeconfig", "-n", "karmada-system"], "")?;
    let output = register_dry_run()?;
    ensure!(output.code == Some(0) && output.out.contains("would be registered"), "{output:?}");
    in_member.run_ok(&["delete", "namespace", "karmada-system"], "").map(drop)
}

/// A request with a token for the name of an existing cluster is not approved.
fn check_existing_name(register_args: &[&str], member: &Path, kubectl: &Kubectl) -> Result<()> {
    let output = CommandOutput::parse(
        &register_command(register_args, member, &["--run", "--discovery-timeout", "3s"])?.output()?,
    )?;
    ensure!(output.code == Some(1) && output.err.contains("certificate signing request oslo-"), "{output:?}");
    let requests = kubectl.run_ok(&["get", "csr"], "")?;
    ensure!(requests.matches("Pending").count() == 1, "{requests}");
    Ok(())
}
