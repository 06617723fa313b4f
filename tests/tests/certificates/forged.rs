//! Attempts to get an identity other than an agent's with a bootstrap token, and to act as a front proxy with a
//! certificate of the client CA.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{Fleet, Kubectl, wait_for};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rcgen::{PublicKeyData, SigningKey};
use serde_json::{Value, json};

use super::{AGENT, AGENTS, TOKEN};

const FRONT_PROXY: &str = "front-proxy-client";
const CN: &[u8] = &[0x55, 4, 3];
const O: &[u8] = &[0x55, 4, 10];
const UTF8: u8 = 0x0c;
const SET: u8 = 0x31;
const SEQUENCE: u8 = 0x30;
const ECDSA_WITH_SHA256: &[u8] = &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

type Attribute<'a> = (&'a [u8], &'a str);
/// Attributes of a subject by relative distinguished name.
type Subject<'a> = &'a [&'a [Attribute<'a>]];

#[test]
fn certificates_give_no_other_identity() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let pki = data.join("control-plane/pki");
    let fleet = Fleet::start(&data, &["--no-members"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    check_bootstrap_token(&kubectl).with_context(|| fleet.log())?;
    check_front_proxies(&fleet, &kubectl, &pki).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());

    // A data directory of an earlier version has no CA for front proxies; the server creates one.
    let before = fs::read_to_string(pki.join("ca.crt"))?;
    fs::remove_file(pki.join("front-proxy-ca.crt"))?;
    fs::remove_file(pki.join("front-proxy-ca.key"))?;
    let fleet = Fleet::start(&data, &["--no-members"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    check_front_proxies(&fleet, &kubectl, &pki).with_context(|| fleet.log())?;
    ensure!(fs::read_to_string(pki.join("ca.crt"))? == before, "the client CA has changed");
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// A bootstrap token gives no identity except an agent's.
fn check_bootstrap_token(kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], TOKEN)?;
    let bootstrap = kubectl.with_token("abcdef.0123456789abcdef")?;
    let attempts: [(&str, Subject<'_>); 15] = [
        ("agent-then-proxy", &[&[(O, AGENTS)], &[(CN, AGENT)], &[(CN, FRONT_PROXY)]]),
        ("proxy-then-agent", &[&[(O, AGENTS)], &[(CN, FRONT_PROXY)], &[(CN, AGENT)]]),
        ("both-in-one", &[&[(O, AGENTS)], &[(CN, FRONT_PROXY), (CN, AGENT)]]),
        ("both-in-one-reversed", &[&[(O, AGENTS)], &[(CN, AGENT), (CN, FRONT_PROXY)]]),
        ("agent-then-admin", &[&[(O, AGENTS)], &[(CN, AGENT)], &[(CN, "system:admin")]]),
        ("proxy", &[&[(CN, FRONT_PROXY)]]),
        ("proxy-as-agent", &[&[(O, AGENTS)], &[(CN, FRONT_PROXY)]]),
        ("impersonator-suffix", &[&[(O, AGENTS)], &[(CN, "system:karmada:agent:x-impersonator")]]),
        ("masters", &[&[(O, "system:masters")], &[(CN, "ann")]]),
        ("agent-and-masters", &[&[(O, AGENTS)], &[(O, "system:masters")], &[(CN, AGENT)]]),
        ("admin", &[&[(CN, "system:admin")]]),
        ("node", &[&[(O, "system:nodes")], &[(CN, "system:node:n1")]]),
        ("component", &[&[(CN, "system:karmada:controller-manager")]]),
        ("account", &[&[(CN, "system:serviceaccount:kube-system:default")]]),
        ("nul-in-name", &[&[(O, AGENTS)], &[(CN, "system:karmada:agent:x\0")]]),
    ];
    for (name, subject) in attempts {
        check_no_certificate(kubectl, &bootstrap, name, subject).with_context(|| name.to_owned())?;
    }
    Ok(())
}

/// Checks that the request is refused, or that the approver does not approve it and the signer does not sign it after
/// an administrator has approved it.
fn check_no_certificate(kubectl: &Kubectl, bootstrap: &Kubectl, name: &str, subject: Subject<'_>) -> Result<()> {
    let output = bootstrap.run(&["create", "-f", "-"], &signing_request(name, subject)?.to_string())?;
    if output.code != Some(0) {
        ensure!(output.err.contains("is forbidden") || output.err.contains("is invalid"), "{output:?}");
        return Ok(());
    }
    // The approver handles requests in order, so it has handled this one when the next is approved.
    let valid = format!("valid-{name}");
    let cluster = format!("system:karmada:agent:{name}");
    let next = signing_request(&valid, &[&[(O, AGENTS)], &[(CN, &cluster)]])?.to_string();
    bootstrap.run_ok(&["create", "-f", "-"], &next)?;
    kubectl.run_until(&["get", "csr", &valid, "-o", "json"], |out| out.contains("\"certificate\""))?;
    ensure!(get_csr(kubectl, name)?["status"] == json!({}), "{:#}", get_csr(kubectl, name)?);
    kubectl.run_ok(&["certificate", "approve", name], "")?;
    wait_for("the signer's refusal", || Ok(get_csr(kubectl, name)?["status"].to_string().contains("Failed")))?;
    let status = &get_csr(kubectl, name)?["status"];
    ensure!(status["certificate"].is_null() && status.to_string().contains("reserved"), "{status:#}");
    Ok(())
}

fn get_csr(kubectl: &Kubectl, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&kubectl.run_ok(&["get", "csr", name, "-o", "json"], "")?)?)
}

/// Front proxies are authenticated by a separate CA.
fn check_front_proxies(fleet: &Fleet, kubectl: &Kubectl, pki: &Path) -> Result<()> {
    let get_config_map = ["get", "configmap", "extension-apiserver-authentication", "-n", "kube-system", "-o", "json"];
    let config_map: Value = serde_json::from_str(&kubectl.run_ok(&get_config_map, "")?)?;
    let authority = |file: &str| fs::read_to_string(pki.join(format!("{file}.crt")));
    ensure!(config_map["data"]["client-ca-file"] == authority("ca")?, "{config_map:#}");
    ensure!(config_map["data"]["requestheader-client-ca-file"] == authority("front-proxy-ca")?, "{config_map:#}");
    ensure!(config_map["data"]["requestheader-allowed-names"] == "[\"front-proxy-client\"]", "{config_map:#}");
    ensure!(authority("ca")? != authority("front-proxy-ca")?);

    let port = ["get", "apiservice", "v1alpha1.cluster.karmada.io", "-o", "jsonpath={.spec.service.port}"];
    let aggregated = format!("https://127.0.0.1:{}", kubectl.run_ok(&port, "")?);
    let clusters = "/apis/cluster.karmada.io/v1alpha1/clusters";
    let endpoints = [(fleet.server()?, "/api/v1/namespaces/kube-system/secrets"), (aggregated, clusters)];
    let admin = [("x-remote-user", "system:admin"), ("x-remote-group", "system:masters")];
    let twice = [&admin[..], &[("x-remote-user", "system:admin")]].concat();
    for (server, path) in &endpoints {
        let client_ca_user = client_kubeconfig(pki, "ca", FRONT_PROXY, server)?;
        let other_name = client_kubeconfig(pki, "front-proxy-ca", "somebody", server)?;
        let proxy = client_kubeconfig(pki, "front-proxy-ca", FRONT_PROXY, server)?;
        let cases: [(&Path, &[(&str, &str)], u16, &str); 7] = [
            (&client_ca_user, &admin, 403, "User \\\"front-proxy-client\\\""),
            (&client_ca_user, &[], 403, "User \\\"front-proxy-client\\\""),
            (&other_name, &admin, 401, "Unauthorized"),
            (&proxy, &admin, 200, "items"),
            (&proxy, &[("x-remote-user", "ann")], 403, "User \\\"ann\\\""),
            (&proxy, &twice, 400, "more than one x-remote-user header"),
            (&proxy, &[], 401, "Unauthorized"),
        ];
        for (kubeconfig, headers, code, text) in cases {
            let (status, body) = get(kubeconfig, path, headers)?;
            ensure!(
                status == code && body.contains(text),
                "{server} {headers:?} {}: {status} {body}",
                kubeconfig.display()
            );
        }
    }
    // The control plane itself can still proxy requests.
    kubectl.run_ok(&["get", "--raw", clusters], "").map(drop)
}

/// Kubeconfig with a client certificate that the CA in `{authority}.crt` has signed.
fn client_kubeconfig(pki: &Path, authority: &str, name: &str, server: &str) -> Result<PathBuf> {
    let read = |extension: &str| fs::read_to_string(pki.join(format!("{authority}.{extension}")));
    let issuer = Issuer::from_ca_cert_pem(&read("crt")?, KeyPair::from_pem(&read("key")?)?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer)?.pem();
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "x", "user": {"client-certificate-data": STANDARD.encode(certificate),
            "client-key-data": STANDARD.encode(key.serialize_pem())}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]});
    let file = pki.join(format!("{authority}-{name}.kubeconfig"));
    fs::write(&file, config.to_string())?;
    Ok(file)
}

/// Status and body of a response.
fn get(kubeconfig: &Path, path: &str, headers: &[(&str, &str)]) -> Result<(u16, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let file = kube::config::Kubeconfig::read_from(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?;
        let client = kube::Client::try_from(config)?;
        let request =
            headers.iter().fold(http::Request::get(path), |request, (name, value)| request.header(*name, *value));
        let (parts, body) = client.send(request.body(kube::client::Body::empty())?).await?.into_parts();
        let body = http_body_util::BodyExt::collect(body).await?.to_bytes();
        Ok((parts.status.as_u16(), String::from_utf8_lossy(&body).into_owned()))
    })
}

/// A DER value with its tag and length.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = match length {
        0..0x80 => vec![tag, length as u8],
        0x80..0x100 => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    [head.as_slice(), content].concat()
}

/// A CertificateSigningRequest for a subject that libraries refuse to encode.
fn signing_request(name: &str, subject: Subject<'_>) -> Result<Value> {
    let attribute =
        |(oid, value): &Attribute<'_>| der(SEQUENCE, &[der(0x06, oid), der(UTF8, value.as_bytes())].concat());
    let rdn = |set: &&[Attribute<'_>]| der(SET, &set.iter().map(attribute).collect::<Vec<_>>().concat());
    let subject = der(SEQUENCE, &subject.iter().map(rdn).collect::<Vec<_>>().concat());
    let key = KeyPair::generate()?;
    let public = key.subject_public_key_info();
    let info = der(SEQUENCE, &[&[0x02, 0x01, 0x00], subject.as_slice(), public.as_slice(), &[0xa0, 0x00]].concat());
    let signature = [&[0], key.sign(&info)?.as_slice()].concat();
    let request = der(SEQUENCE, &[&info, ECDSA_WITH_SHA256, &der(0x03, &signature)].concat());
    let pem = format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
        STANDARD.encode(request)
    );
    Ok(json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"signerName": "kubernetes.io/kube-apiserver-client", "request": STANDARD.encode(pem),
            "usages": ["digital signature", "client auth"]},
    }))
}
