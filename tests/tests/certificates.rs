//! Certificates of agents: a bootstrap token allows a request, `agentcsrapproving` approves requests of agents and no
//! others, and an agent renews its own certificate.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use crowsnest_tests::{Fleet, Kubectl};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

mod forged;

const TOKEN: &str = include_str!("certificates/token.yaml");
const AGENT: &str = "system:karmada:agent:member1";
const AGENTS: &str = "system:karmada:agents";

#[test]
fn an_agent_gets_its_certificate_with_a_bootstrap_token() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--no-members"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    check_certificates(&kubectl).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn check_certificates(kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], TOKEN)?;
    check_cluster_info(kubectl)?;
    let with_token = |secret: &str| kubectl.with_token(&format!("abcdef.{secret}"));
    let bootstrap = with_token("0123456789abcdef")?;
    with_token("fedcba9876543210")?.expect_output(&["get", "csr"], "", 1, "Unauthorized")?;
    kubectl.with_token("zyxwvu.0123456789abcdef")?.expect_output(&["get", "csr"], "", 1, "Unauthorized")?;
    bootstrap.expect_output(&["get", "secrets", "-A"], "", 1, "User \"system:bootstrap:abcdef\" cannot list")?;

    // No request for `system:masters` is approved. Requests of users other than agents are left to administrators.
    let masters = signing_request("masters", "system:masters", "system:admin")?.to_string();
    let refused = "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
    bootstrap.expect_output(&["create", "-f", "-"], &masters, 1, refused)?;
    kubectl.expect_output(&["create", "-f", "-"], &masters, 1, refused)?;
    bootstrap.run_ok(&["create", "-f", "-"], &signing_request("admin", "admins", "system:admin")?.to_string())?;
    bootstrap.run_ok(&["create", "-f", "-"], &signing_request("agent", AGENTS, AGENT)?.to_string())?;
    wait_until_signed(&bootstrap, "agent", "Auto approving karmada agent certificate after SubjectAccessReview.")?;
    ensure!(get_csr(kubectl, "admin")?["status"] == json!({}), "the request was decided without an administrator");

    // The agent requests a renewal with its own identity; another user's request is not approved.
    let agent = kubectl.with_flags(&["--as", AGENT, "--as-group", AGENTS]);
    let grant_renewal =
        ["create", "clusterrolebinding", "agents", "--clusterrole=system:node-bootstrapper", "--group", AGENTS];
    kubectl.run_ok(&grant_renewal, "")?;
    agent.run_ok(&["create", "-f", "-"], &signing_request("next", AGENTS, AGENT)?.to_string())?;
    wait_until_signed(&agent, "next", "Auto approving self karmada agent certificate after SubjectAccessReview.")?;
    let other = kubectl.with_flags(&["--as", "system:karmada:agent:member2", "--as-group", AGENTS]);
    other.run_ok(&["create", "-f", "-"], &signing_request("stolen", AGENTS, AGENT)?.to_string())?;
    agent.run_ok(&["create", "-f", "-"], &signing_request("last", AGENTS, AGENT)?.to_string())?;
    wait_until_signed(&agent, "last", "Auto approving self")?;
    ensure!(get_csr(kubectl, "stolen")?["status"] == json!({}), "an agent received another agent's certificate");

    // A deleted token no longer authenticates.
    kubectl.run_ok(&["delete", "secret", "bootstrap-token-abcdef", "-n", "kube-system"], "")?;
    bootstrap.expect_output(&["get", "csr"], "", 1, "Unauthorized").map(drop)
}

/// Clients without credentials can read cluster-info: the control plane's address, signed with the token.
fn check_cluster_info(kubectl: &Kubectl) -> Result<()> {
    let anonymous = kubectl.with_flags(&["--as", "system:anonymous"]);
    let get = ["get", "configmap", "cluster-info", "-n", "kube-public", "-o", "json"];
    let cluster_info = anonymous.run_until(&get, |out| out.contains("jws-kubeconfig-abcdef"))?;
    let cluster_info: Value = serde_json::from_str(&cluster_info)?;
    let (text, signature) =
        (cluster_info["data"]["kubeconfig"].as_str(), cluster_info["data"]["jws-kubeconfig-abcdef"].as_str());
    let text = text.context("cluster-info has no kubeconfig")?;
    let signature = signature.context("cluster-info has no signature")?;
    ensure!(text.contains("server: https://") && text.contains("certificate-authority-data: "), "{text}");
    let (header, tag) = signature.split_once("..").context("the signature is not detached")?;
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"0123456789abcdef");
    let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(text));
    let tag = URL_SAFE_NO_PAD.decode(tag)?;
    ensure!(
        ring::hmac::verify(&key, message.as_bytes(), &tag).is_ok(),
        "{signature} is not the signature of the kubeconfig"
    );
    anonymous.expect_output(&["get", "configmaps", "-n", "kube-public"], "", 1, "cannot list").map(drop)
}

fn get_csr(kubectl: &Kubectl, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&kubectl.run_ok(&["get", "csr", name, "-o", "json"], "")?)?)
}

fn wait_until_signed(kubectl: &Kubectl, name: &str, message: &str) -> Result<()> {
    let csr = kubectl.run_until(&["get", "csr", name, "-o", "json"], |out| out.contains("\"certificate\""))?;
    let csr: Value = serde_json::from_str(&csr)?;
    let condition = &csr["status"]["conditions"][0];
    ensure!(condition["type"] == "Approved" && condition["reason"] == "AutoApproved", "{csr:#}");
    ensure!(condition["message"].as_str().is_some_and(|text| text.starts_with(message)), "{csr:#}");
    Ok(())
}

fn signing_request(name: &str, organization: &str, common_name: &str) -> Result<Value> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, common_name);
    let pem = params.serialize_request(&KeyPair::generate()?)?.pem()?;
    Ok(json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {
            "signerName": "kubernetes.io/kube-apiserver-client", "request": STANDARD.encode(pem),
            "usages": ["digital signature", "key encipherment", "client auth"],
        },
    }))
}
