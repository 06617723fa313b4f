//! Logs at any level contain no confidential values: neither contents of Secrets nor credentials, of accepted and of
//! refused requests.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{Fleet, Kubectl};
use serde_json::Value;

const FLEET: &str = include_str!("secrets/fleet.yaml");
const REFUSED: &str = include_str!("secrets/refused.yaml");
const REFUSED_VALUE: &str = "half-a-pair-20c7-refused";
const INVALID_TOKEN: &str = "made-up-bearer-71b2";
/// Keys in Secrets whose values are public.
const PUBLIC_KEYS: [&str; 7] =
    ["ca.crt", "caBundle", "namespace", "token-id", "expiration", "auth-extra-groups", "description"];
/// Minimum length of checked values; shorter ones could occur in a log by chance.
const MIN_LENGTH: usize = 12;

#[test]
fn confidential_values_are_not_logged() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let log_level = [("CROWSNEST_LOG", OsString::from("debug"))];
    let fleet = Fleet::start_with_env(&data, &["--members", "member1"], &log_level)?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let mut secrets = Secrets::default();
    secrets.add("a value in an invalid Secret", REFUSED_VALUE);
    secrets.add("an invalid token", INVALID_TOKEN);
    secrets.add("the UI's token", fleet.ui_url.split_once("#token=").context("the UI has no token")?.1);
    write_secrets(&fleet, &kubectl)?;
    send_tokens(&fleet, &kubectl, &mut secrets)?;
    for name in ["cp", "member1"] {
        secrets.add_kubeconfig(&fleet.kubeconfig(name))?;
        secrets.add_cluster(&kubectl.with_kubeconfig(&fleet.kubeconfig(name)), name)?;
    }
    let registered = fleet.crowsnest(&["token", "create"])?;
    let token = registered.out.trim();
    secrets.add("a bootstrap token", token);
    secrets.add("a bootstrap token's secret", token.split_once('.').context("the token has no secret")?.1);
    ensure!(fleet.stop()?.success());

    let log = fs::read_to_string(data.with_extension("log"))?;
    ensure!(log.lines().count() > 100 && log.contains("DEBUG"), "expected more log lines:\n{log}");
    ensure!(secrets.all.len() > 10, "{} secrets", secrets.all.len());
    for (description, secret) in &secrets.all {
        let line = log.lines().find(|line| line.contains(secret.as_str()));
        // The message contains neither the value nor the line, because it is also logged.
        ensure!(
            line.is_none(),
            "{description} is in the log at byte {}",
            log.find(secret.as_str()).unwrap_or_default()
        );
    }
    ensure!(!log.contains("PRIVATE KEY"), "a private key is in the log");
    Ok(())
}

/// Creates, overrides, propagates and changes a Secret; another one is refused.
fn write_secrets(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], FLEET)?;
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member1"));
    let value = ["get", "secret", "db", "-o", "jsonpath={.data.password}"];
    member.run_until(&value, |out| out == "c3RhcGxlLTQ0YWUtb3ZlcnJpZGRlbg==")?;
    kubectl.run_ok(
        &["patch", "secret", "db", "--type=merge", "-p", r#"{"stringData":{"user":"another-one-5d2b-patched"}}"#],
        "",
    )?;
    member.run_until(&["get", "secret", "db", "-o", "jsonpath={.data.user}"], |out| !out.is_empty())?;
    kubectl.expect_output(&["create", "-f", "-"], REFUSED, 1, "tls.crt")?;
    fleet.crowsnest(&["search", "kind:secret name:db"])?;
    fleet.crowsnest(&["explain", "secret/db"])?;
    Ok(())
}

/// Sends a valid and an invalid token to the APIs of the control plane, a member and the search.
fn send_tokens(fleet: &Fleet, kubectl: &Kubectl, secrets: &mut Secrets) -> Result<()> {
    kubectl.run_ok(&["create", "serviceaccount", "reader"], "")?;
    let token = kubectl.run_ok(&["create", "token", "reader"], "")?;
    secrets.add("a service account's token", token.trim());
    let server = fleet.server()?;
    for token in [token.trim(), INVALID_TOKEN] {
        for path in [
            "/api/v1/namespaces/default/secrets",
            "/apis/cluster.karmada.io/v1alpha1/clusters/member1/proxy/api/v1/namespaces/default/secrets",
            "/apis/search.crowsnest.io/v1alpha1/query?q=kind:secret",
        ] {
            // The status is not checked here.
            kubectl.with_flags(&["--server", &server, "--token", token]).run(&["get", "--raw", path], "")?;
        }
    }
    Ok(())
}

/// Values that must not be logged, with a description.
#[derive(Default)]
struct Secrets {
    all: BTreeSet<(String, String)>,
}

impl Secrets {
    fn add(&mut self, description: &str, secret: &str) {
        if secret.len() >= MIN_LENGTH {
            self.all.insert((description.to_owned(), secret.to_owned()));
            self.all.insert((format!("{description}, in base64,"), STANDARD.encode(secret)));
        }
    }

    /// Adds the keys and tokens of a kubeconfig.
    fn add_kubeconfig(&mut self, path: &Path) -> Result<()> {
        let config: Value = serde_saphyr::from_str(&fs::read_to_string(path)?)?;
        for user in config["users"].as_array().into_iter().flatten() {
            for key in ["client-key-data", "token"] {
                if let Some(secret) = user["user"][key].as_str() {
                    self.add(&format!("{key} of {}", path.display()), secret);
                }
            }
        }
        Ok(())
    }

    /// Adds the values of all Secrets of a cluster.
    fn add_cluster(&mut self, kubectl: &Kubectl, cluster: &str) -> Result<()> {
        let list: Value = serde_json::from_str(&kubectl.run_ok(&["get", "secrets", "-A", "-o", "json"], "")?)?;
        for secret in list["items"].as_array().into_iter().flatten() {
            let name = format!("{}/{}", secret["metadata"]["namespace"], secret["metadata"]["name"]);
            for (key, value) in secret["data"].as_object().into_iter().flatten() {
                let bytes = STANDARD.decode(value.as_str().unwrap_or_default())?;
                if let Ok(text) = String::from_utf8(bytes)
                    && !PUBLIC_KEYS.contains(&key.as_str())
                    && !key.starts_with("usage-")
                {
                    self.add(&format!("{key} of Secret {name} of {cluster}"), text.trim());
                }
            }
        }
        Ok(())
    }
}
