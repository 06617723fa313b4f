//! The chart's manifests at a validating API server: all objects are accepted. The Job creates each Secret exactly
//! once, also if several Jobs run concurrently, and needs no permissions other than its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{Apiserver, CommandOutput, Kubectl, binary, find_kubectl, run_release_script};
use serde_json::Value;

const NAMESPACE: &str = "crowsnest";

#[test]
fn manifests_are_accepted_and_credentials_created_once() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let Some(program) = find_kubectl("")? else { return Ok(()) };
    let mut server = Apiserver::start(&dir.path().join("data"))?;
    let kubectl = Kubectl::new("any", program, &server.kubeconfig, &dir.path().join("kubectl"))?;
    let kubectl = kubectl.with_flags(&["-n", NAMESPACE]);
    let manifests = dir.path().join("manifests");
    if !run_release_script("manifests", &manifests, &[])? {
        return Ok(());
    }
    for name in ["crowsnest-several.yaml", "crowsnest-external.yaml", "crowsnest.yaml", "crowsnest-agent.yaml"] {
        let file = manifests.join(name).display().to_string();
        let output =
            kubectl.run(&["apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", &file], "")?;
        ensure!(output.code == Some(0) && !output.err.contains("Warning"), "{name}: {output:?}");
    }
    // The Job of the manifests creates the Secrets in this list.
    let list = kubectl
        .run_ok(&["get", "configmap", "crowsnest-credentials", "-o", r"jsonpath={.data.credentials\.yaml}"], "")?;
    let job = Job::new(&server, &kubectl, dir.path(), &list)?;
    let children = [job.start()?, job.start()?, job.start()?];
    for child in children {
        let output = CommandOutput::parse(&child.wait_with_output()?)?;
        ensure!(output.code == Some(0), "{output:?}");
    }
    let created = secrets(&kubectl)?;
    let names: Vec<&str> = created.keys().map(String::as_str).collect();
    ensure!(names.contains(&"crowsnest-ca") && names.contains(&"crowsnest-etcd-server"), "{names:?}");
    // The key of the UI's cookies has no expiry.
    let (passwords, certificates): (Vec<_>, Vec<_>) =
        created.iter().partition(|(_, secret)| secret["type"] == "Opaque");
    ensure!(passwords.len() == 1 && created["crowsnest-ui-session-key"]["data"]["password"].is_string(), "{names:?}");
    for (name, secret) in &certificates {
        let [authority, certificate] = ["ca.crt", "tls.crt"].map(|key| &secret["data"][key]);
        ensure!(secret["type"] == "kubernetes.io/tls" && secret["data"]["tls.key"].is_string(), "{name}: {names:?}");
        let issuer =
            ["ca", "front-proxy-ca", "etcd-ca"].map(|ca| &created[&format!("crowsnest-{ca}")]["data"]["tls.crt"]);
        let is_known = issuer.contains(&authority);
        ensure!(is_known && certificate.is_string(), "{name} was issued by an unknown authority");
    }

    let unchanged = job.run(&[])?;
    ensure!(
        unchanged.out.lines().count() == created.len()
            && unchanged.out.matches(": kept until 20").count() == certificates.len(),
        "{unchanged:?}"
    );
    kubectl.run_ok(&["delete", "secret", "crowsnest-client"], "")?;
    let dry_run = job.run(&["--dry-run"])?;
    ensure!(dry_run.out.contains("crowsnest-client: would be created: it did not exist"), "{dry_run:?}");
    ensure!(!secrets(&kubectl)?.contains_key("crowsnest-client"));
    let recreated = job.run(&[])?;
    ensure!(recreated.out.matches(": created: ").count() == 1, "{recreated:?}");
    // Certificates are renewed early if requested; authorities and the token signing key are not.
    let early_renewal = job.run(&["--renew-before", "8761h"])?;
    let renewed_count = early_renewal.out.matches(": created: it expires at 20").count();
    ensure!(renewed_count == certificates.len() - 3, "{early_renewal:?}");
    let current = secrets(&kubectl)?;
    let key = |secrets: &BTreeMap<String, Value>, name: &str| secrets[name]["data"]["tls.key"].clone();
    for (name, is_unchanged) in
        [("crowsnest-service-accounts", true), ("crowsnest-ca", true), ("crowsnest-server", false)]
    {
        ensure!((key(&created, name) == key(&current, name)) == is_unchanged, "unexpected key of {name}");
    }
    check_permissions(&job.kubectl)?;
    ensure!(server.stop()?.success());
    Ok(())
}

/// The Job's account can read and write only the Secrets of its list.
fn check_permissions(kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["get", "secret", "crowsnest-ca", "-o", "name"], "")?;
    for refused in [
        vec!["get", "secrets"],
        vec!["get", "secret", "another"],
        vec!["delete", "secret", "crowsnest-ca"],
        vec!["get", "pods"],
    ] {
        kubectl.expect_output(&refused, "", 1, "forbidden")?;
    }
    Ok(())
}

/// The chart's Job as a local process with the Job's account.
struct Job {
    list: PathBuf,
    kubeconfig: PathBuf,
    kubectl: Kubectl,
}

impl Job {
    fn new(server: &Apiserver, kubectl: &Kubectl, folder: &Path, list: &str) -> Result<Self> {
        let (file, kubeconfig) = (folder.join("credentials.yaml"), folder.join("job.kubeconfig"));
        fs::write(&file, list)?;
        let token = kubectl.run_ok(&["create", "token", "crowsnest-credentials"], "")?;
        let config: Value = serde_saphyr::from_str(&fs::read_to_string(&server.kubeconfig)?)?;
        let authority = config.pointer("/clusters/0/cluster/certificate-authority-data").and_then(Value::as_str);
        let authority = String::from_utf8(STANDARD.decode(authority.context("no authority")?)?)?;
        let ca = folder.join("ca.crt");
        fs::write(&ca, authority)?;
        let server = config.pointer("/clusters/0/cluster/server").and_then(Value::as_str).context("no server")?;
        let token = token.trim();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: job\n\
             clusters: [{{name: job, cluster: {{server: \"{server}\", certificate-authority: \"{}\"}}}}]\n\
             users: [{{name: job, user: {{token: \"{token}\"}}}}]\ncontexts: [{{name: job, context: {{cluster: job, user: job}}}}]\n",
            ca.display()
        );
        fs::write(&kubeconfig, text)?;
        let kubectl = kubectl.with_kubeconfig(&kubeconfig);
        Ok(Self { list: file, kubeconfig, kubectl })
    }

    fn command(&self, extra_args: &[&str]) -> Result<Command> {
        let mut command = Command::new(binary()?);
        command.args(["credentials", "--namespace", NAMESPACE, "--file"]).arg(&self.list);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(extra_args);
        Ok(command)
    }

    fn start(&self) -> Result<Child> {
        Ok(self.command(&[])?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    fn run(&self, extra_args: &[&str]) -> Result<CommandOutput> {
        let output = CommandOutput::parse(&self.command(extra_args)?.output()?)?;
        ensure!(output.code == Some(0), "{output:?}");
        Ok(output)
    }
}

/// The Job's Secrets by name.
fn secrets(kubectl: &Kubectl) -> Result<BTreeMap<String, Value>> {
    let args = ["get", "secrets", "-l", "app.kubernetes.io/managed-by=crowsnest", "-o", "json"];
    let list: Value = serde_json::from_str(&kubectl.run_ok(&args, "")?)?;
    let items = list["items"].as_array().context("the list has no items")?;
    Ok(items
        .iter()
        .map(|item| (item["metadata"]["name"].as_str().unwrap_or_default().to_owned(), item.clone()))
        .collect())
}
