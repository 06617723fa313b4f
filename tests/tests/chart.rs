//! The Helm charts, rendered by Helm's library: their manifests are valid and match the binary's flags; alerts and
//! dashboards use existing metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use crowsnest_tests::{binary, render_charts, repository_root};
use serde::Deserialize;
use serde_json::{Value, json};

const CASES: &str = include_str!("chart/cases.yaml");
/// Kinds that create pods, with the path of the pod template.
const WORKLOADS: [(&str, &str); 4] = [
    ("Deployment", "/spec/template"),
    ("StatefulSet", "/spec/template"),
    ("Job", "/spec/template"),
    ("CronJob", "/spec/jobTemplate/spec/template"),
];

#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    chart: String,
    release: String,
    values: Value,
    error: Option<String>,
    /// Texts that the rendered manifests must contain.
    #[serde(default)]
    contains: Vec<String>,
    /// Texts that the rendered manifests must not contain.
    #[serde(default)]
    excludes: Vec<String>,
}

/// Result of a case: rendered manifests, linter messages, or an error.
#[derive(Debug, Deserialize)]
struct RenderedChart {
    #[serde(default)]
    manifests: BTreeMap<String, String>,
    #[serde(default)]
    lint: Vec<String>,
    error: Option<String>,
}

fn cases() -> Result<Vec<Case>> {
    serde_saphyr::from_str(CASES).context("cases.yaml")
}

/// A case with its result and the rendered objects.
struct RenderedCase {
    case: Case,
    rendered: RenderedChart,
    objects: Vec<Value>,
}

/// Renders all cases; `None` if Helm is not installed.
fn render_cases() -> Result<Option<Vec<RenderedCase>>> {
    let cases = cases()?;
    let requests: Vec<Value> =
        cases.iter().map(|case| json!({"chart": case.chart, "release": case.release, "values": case.values})).collect();
    let Some(output) = render_charts(&requests)? else { return Ok(None) };
    let outcomes: Vec<RenderedChart> = serde_json::from_slice(&output)?;
    ensure!(outcomes.len() == cases.len());
    let rendered_cases = cases.into_iter().zip(outcomes).map(|(case, rendered)| {
        let objects = parse_objects(&rendered).with_context(|| case.name.clone())?;
        Ok(RenderedCase { case, rendered, objects })
    });
    rendered_cases.collect::<Result<Vec<_>>>().map(Some)
}

/// All cases with their results, which all tests share because rendering is expensive; `None` if Helm is
/// not installed.
fn rendered_cases() -> Result<Option<&'static [RenderedCase]>> {
    static RENDERED: LazyLock<Result<Option<Vec<RenderedCase>>>> = LazyLock::new(render_cases);
    match &*RENDERED {
        Ok(cases) => Ok(cases.as_deref()),
        Err(error) => bail!("{error:#}"),
    }
}

/// Cases that render without an error, with their objects.
fn successful_cases() -> Result<Option<impl Iterator<Item = (&'static Case, &'static [Value])>>> {
    let Some(cases) = rendered_cases()? else { return Ok(None) };
    let successful = cases.iter().filter(|rendered| rendered.case.error.is_none());
    Ok(Some(successful.map(|rendered| (&rendered.case, rendered.objects.as_slice()))))
}

fn parse_objects(rendered: &RenderedChart) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for (file, text) in &rendered.manifests {
        let documents: Vec<Option<Value>> =
            serde_saphyr::from_multiple(text).with_context(|| format!("{file}:\n{text}"))?;
        objects.extend(documents.into_iter().flatten());
    }
    Ok(objects)
}

fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Name and pod template of each workload.
fn pods(objects: &[Value]) -> Vec<(String, &Value)> {
    let mut pods = Vec::new();
    for object in objects {
        let at = WORKLOADS.iter().find(|(known, _)| *known == kind(object)).map(|(_, at)| *at);
        if let Some(pod) = at.and_then(|at| object.pointer(at)) {
            pods.push((format!("{} {}", kind(object), name(object)), pod));
        }
    }
    pods
}

/// True if a selector matches a pod's labels.
fn selects(selector: &Value, pod: &Value) -> bool {
    let labels = &pod["metadata"]["labels"];
    selector.as_object().is_some_and(|expected| expected.iter().all(|(key, value)| labels.get(key) == Some(value)))
}

#[test]
fn charts_render_or_report_errors() -> Result<()> {
    let Some(cases) = rendered_cases()? else { return Ok(()) };
    for RenderedCase { case, rendered, objects } in cases {
        match (&case.error, &rendered.error) {
            (None, None) => ensure!(rendered.lint.is_empty(), "{}: the linter reports {:?}", case.name, rendered.lint),
            (Some(expected), Some(error)) => ensure!(error.contains(expected), "{}: {error}", case.name),
            (None, Some(error)) => bail!("{}: {error}", case.name),
            (Some(expected), None) => bail!("{}: rendered instead of failing with {expected:?}", case.name),
        }
        let text: String = rendered.manifests.values().map(String::as_str).collect();
        for part in &case.contains {
            ensure!(text.contains(part.as_str()), "{}: {part:?} is missing", case.name);
        }
        for part in &case.excludes {
            ensure!(!text.contains(part.as_str()), "{}: {part:?} must not be rendered", case.name);
        }
        for object in objects {
            ensure!(object["apiVersion"].is_string() && !name(object).is_empty(), "{}: {object:#}", case.name);
            // Secret values are created in the cluster, never rendered.
            ensure!(kind(object) != "Secret", "{}: {object:#}", case.name);
        }
    }
    Ok(())
}

#[test]
fn every_pod_is_restricted() -> Result<()> {
    let Some(cases) = successful_cases()? else { return Ok(()) };
    for (case, objects) in cases {
        for (workload, pod) in pods(objects) {
            let subject = format!("{}: {workload}", case.name);
            let spec = &pod["spec"];
            ensure!(
                spec["automountServiceAccountToken"].is_boolean(),
                "{subject} does not set automountServiceAccountToken"
            );
            for field in ["hostNetwork", "hostPID", "hostIPC"] {
                ensure!(spec.get(field).is_none(), "{subject} has {field}");
            }
            let context = &spec["securityContext"];
            ensure!(context["runAsNonRoot"] == true && context["runAsUser"].as_u64() > Some(0), "{subject}: {context}");
            let volumes: BTreeSet<&str> = list(&spec["volumes"])
                .filter_map(|volume| volume["name"].as_str())
                .chain(claims(objects, &workload))
                .collect();
            ensure!(
                list(&spec["volumes"]).all(|volume| volume.get("hostPath").is_none()),
                "{subject} mounts a hostPath volume"
            );
            for container in list(&spec["containers"]).chain(list(&spec["initContainers"])) {
                let expected = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
                    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}});
                ensure!(container["securityContext"] == expected, "{subject}: {container:#}");
                let resources = &container["resources"];
                let required = ["/requests/cpu", "/requests/memory", "/limits/memory"];
                ensure!(
                    required.iter().all(|at| resources.pointer(at).is_some()),
                    "{subject} has no requests or limits: {resources}"
                );
                let image = container["image"].as_str().unwrap_or_default();
                let (_, tag) = image.rsplit_once([':', '@']).unwrap_or_default();
                ensure!(!tag.is_empty() && tag != "latest", "{subject}: {image}");
                for mount in list(&container["volumeMounts"]) {
                    let volume = mount["name"].as_str().unwrap_or_default();
                    ensure!(volumes.contains(volume), "{subject} mounts {volume}, which does not exist");
                }
            }
        }
    }
    Ok(())
}

/// The image runs as an unprivileged user, without a shell, for any command.
#[test]
fn the_image_runs_unprivileged() -> Result<()> {
    let text = fs::read_to_string(repository_root().join("Dockerfile"))?;
    let last = text.rsplit("\nFROM ").next().context("no stage")?;
    let user = last.lines().filter_map(|line| line.strip_prefix("USER ")).next_back().context("no USER")?;
    let ids: Vec<u32> = user.trim().split(':').map(str::parse).collect::<Result<_, _>>().context(user.to_owned())?;
    ensure!(ids.len() == 2 && ids.iter().all(|id| *id > 0), "{user}");
    ensure!(text.contains("ARG BASE_IMAGE=gcr.io/distroless/") && last.starts_with("${BASE_IMAGE}"), "{last}");
    ensure!(!last.lines().any(|line| line.starts_with("RUN ") || line.starts_with("ADD ")), "{last}");
    ensure!(last.lines().any(|line| line.starts_with("ENTRYPOINT [\"")), "{last}");
    Ok(())
}

/// A process in a pod, or a reader of its files, must not find Secrets that it does not need: Secrets are mounted
/// read-only and are readable by the pod's group only.
#[test]
fn secrets_are_mounted_read_only_with_restrictive_modes() -> Result<()> {
    let Some(cases) = successful_cases()? else { return Ok(()) };
    for (case, objects) in cases {
        for (workload, pod) in pods(objects) {
            let volumes = list(&pod["spec"]["volumes"]).filter(|volume| volume.get("secret").is_some());
            for volume in volumes {
                let subject = format!("{}: {workload}: {}", case.name, volume["name"]);
                // The mode is octal in YAML 1.1, which Kubernetes reads, but this parser reads it as a decimal number.
                let mode = volume.pointer("/secret/defaultMode").and_then(Value::as_f64);
                let mode = mode.and_then(|mode| u32::from_str_radix(&mode.to_string(), 8).ok());
                ensure!(mode.is_some_and(|mode| mode & 0o337 == 0), "{subject} has the mode {mode:?}: {volume}");
                let containers = list(&pod["spec"]["containers"]).chain(list(&pod["spec"]["initContainers"]));
                let mounts = containers.flat_map(|container| list(&container["volumeMounts"]));
                let mut own_mounts = mounts.filter(|mount| mount["name"] == volume["name"]);
                ensure!(own_mounts.all(|mount| mount["readOnly"] == true), "{subject} is mounted writable");
            }
        }
    }
    Ok(())
}

/// Names of the volumes that a StatefulSet claims.
fn claims<'a>(objects: &'a [Value], workload: &str) -> Vec<&'a str> {
    let stateful_set = objects
        .iter()
        .find(|object| workload == format!("StatefulSet {}", name(object)) && kind(object) == "StatefulSet");
    let claims = stateful_set.into_iter().flat_map(|set| list(&set["spec"]["volumeClaimTemplates"]));
    claims.map(name).collect()
}

#[test]
fn referenced_objects_exist() -> Result<()> {
    let Some(cases) = successful_cases()? else { return Ok(()) };
    for (case, objects) in cases {
        let pods = pods(objects);
        let names_of =
            |expected: &str| -> BTreeSet<&str> { objects.iter().filter(|o| kind(o) == expected).map(name).collect() };
        let (maps, accounts) = (names_of("ConfigMap"), names_of("ServiceAccount"));
        let secrets = secrets(case, objects)?;
        for (workload, pod) in &pods {
            let subject = format!("{}: {workload}", case.name);
            let spec = &pod["spec"];
            if let Some(account) = spec["serviceAccountName"].as_str() {
                ensure!(accounts.contains(account), "{subject} uses ServiceAccount {account}, which does not exist");
            }
            for volume in list(&spec["volumes"]) {
                if let Some(map) = volume.pointer("/configMap/name").and_then(Value::as_str) {
                    ensure!(maps.contains(map), "{subject} mounts ConfigMap {map}, which does not exist");
                }
                if let Some(secret) = volume.pointer("/secret/secretName").and_then(Value::as_str) {
                    ensure!(secrets.contains(secret), "{subject} mounts Secret {secret}, which does not exist");
                }
            }
            let containers: Vec<&Value> = list(&spec["containers"]).collect();
            let variables = containers.iter().flat_map(|container| list(&container["env"]));
            for variable in variables {
                if let Some(secret) = variable.pointer("/valueFrom/secretKeyRef/name").and_then(Value::as_str) {
                    ensure!(secrets.contains(secret), "{subject} reads Secret {secret}, which does not exist");
                }
            }
        }
        for service in objects.iter().filter(|object| kind(object) == "Service") {
            let selected_pods: Vec<_> =
                pods.iter().filter(|(_, pod)| selects(&service["spec"]["selector"], pod)).collect();
            ensure!(!selected_pods.is_empty(), "{}: Service {} selects no pod", case.name, name(service));
            for port in list(&service["spec"]["ports"]) {
                let has_port = |pod: &Value| {
                    let mut ports = list(&pod["spec"]["containers"]).flat_map(|container| list(&container["ports"]));
                    ports.any(|known| known["name"] == port["targetPort"])
                };
                let is_served = selected_pods.iter().all(|(_, pod)| has_port(pod));
                ensure!(is_served, "{}: Service {}, port {port}", case.name, name(service));
            }
        }
        for budget in objects.iter().filter(|object| kind(object) == "PodDisruptionBudget") {
            let selector = &budget["spec"]["selector"]["matchLabels"];
            let count = pods.iter().filter(|(_, pod)| selects(selector, pod)).count();
            ensure!(count == 1, "{}: PodDisruptionBudget {} selects {count} workloads", case.name, name(budget));
        }
    }
    Ok(())
}

/// Names of the Secrets that the Job or cert-manager creates or that the values reference.
fn secrets(case: &Case, objects: &[Value]) -> Result<BTreeSet<String>> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for map in objects.iter().filter(|object| kind(object) == "ConfigMap") {
        if let Some(text) = map["data"]["credentials.yaml"].as_str() {
            let credentials: Value = serde_saphyr::from_str(text)?;
            names.extend(list(&credentials["secrets"]).filter_map(|secret| secret["name"].as_str()).map(str::to_owned));
        }
    }
    let certificates = objects.iter().filter(|object| kind(object) == "Certificate");
    names.extend(certificates.filter_map(|certificate| certificate["spec"]["secretName"].as_str()).map(str::to_owned));
    let secret_keys = [
        "kubeconfigSecret",
        "sessionKeySecret",
        "tlsSecret",
        "urlSecret",
        "caSecret",
        "credentialsSecret",
        "encryptionSecret",
        "headersSecret",
    ];
    let mut pending = vec![&case.values];
    while let Some(value) = pending.pop() {
        for (key, value) in value.as_object().into_iter().flatten() {
            match value.as_str() {
                Some(secret) if secret_keys.contains(&key.as_str()) => {
                    names.insert(secret.to_owned());
                }
                _ => pending.push(value),
            }
        }
    }
    if case.values.pointer("/certificates/mode") == Some(&json!("external")) {
        let parts = [
            "server",
            "client",
            "kube-apiserver",
            "front-proxy-client",
            "service-accounts",
            "ca",
            "kube-controller-manager",
            "etcd-server",
            "etcd-client",
        ];
        names.extend(parts.map(|part| format!("crowsnest-{part}")));
    }
    // The agent's Secret, with the name used by `crowsnest register`.
    names.insert("karmada-kubeconfig".to_owned());
    Ok(names)
}

#[test]
fn network_policies_admit_intended_peers() -> Result<()> {
    let Some(cases) = successful_cases()? else { return Ok(()) };
    for (case, objects) in cases {
        if case.values.pointer("/networkPolicies/enabled") == Some(&json!(false)) {
            continue;
        }
        let policies: Vec<&Value> = objects.iter().filter(|object| kind(object) == "NetworkPolicy").collect();
        for (workload, pod) in pods(objects) {
            let pod_policies: Vec<_> =
                policies.iter().filter(|policy| selects(&policy["spec"]["podSelector"]["matchLabels"], pod)).collect();
            for direction in ["Ingress", "Egress"] {
                let covered = pod_policies
                    .iter()
                    .any(|policy| list(&policy["spec"]["policyTypes"]).any(|kind| kind == direction));
                ensure!(covered, "{}: no NetworkPolicy restricts {direction} of {workload}", case.name);
            }
        }
        // By default, no rule admits all peers: values must name them.
        for policy in policies {
            for rule in list(&policy["spec"]["ingress"]) {
                ensure!(list(&rule["from"]).next().is_some(), "{}: {policy:#}", case.name);
            }
        }
    }
    Ok(())
}

#[test]
fn roles_are_minimal() -> Result<()> {
    let Some(cases) = successful_cases()? else { return Ok(()) };
    for (case, objects) in cases {
        let roles = objects.iter().filter(|object| kind(object).ends_with("Role"));
        for role in roles {
            let has_wildcard = list(&role["rules"]).any(|rule| rule.to_string().contains("\"*\""));
            // An agent that reports tokens needs all the permissions that it grants to their accounts.
            let is_reporting_agent = case.chart.ends_with("agent-chart")
                && kind(role) == "ClusterRole"
                && name(role) == "crowsnest-agent"
                && case.values.pointer("/reportSecrets/0") != Some(&json!("None"));
            ensure!(has_wildcard == is_reporting_agent, "{}: {role:#}", case.name);
            if case.chart == "deploy/chart" {
                ensure!(kind(role) == "Role", "{}: a ClusterRole: {role:#}", case.name);
            }
        }
    }
    Ok(())
}

/// The arguments of every container are valid for the binary.
#[test]
fn arguments_are_valid() -> Result<()> {
    let Some(cases) = successful_cases()? else { return Ok(()) };
    let mut checked_commands = BTreeSet::new();
    for (case, objects) in cases {
        for (workload, pod) in pods(objects) {
            for container in list(&pod["spec"]["containers"]) {
                let args: Vec<&str> = list(&container["args"]).filter_map(Value::as_str).collect();
                // Containers of other programs have a command, except Postgres, whose arguments begin with a dash.
                if container.get("command").is_some() || args.first().is_none_or(|first| first.starts_with('-')) {
                    continue;
                }
                if !checked_commands.insert(args.join(" ")) {
                    continue;
                }
                // Arguments before `--help` are parsed first.
                let output = Command::new(binary()?).args(&args).arg("--help").output()?;
                let error = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success(), "{}: {workload}: crowsnest {}: {error}", case.name, args.join(" "));
            }
        }
    }
    ensure!(checked_commands.len() >= 5, "{checked_commands:?}");
    Ok(())
}

/// The keys of the configuration file are flags of `serve`.
#[test]
fn the_configuration_is_valid_for_serve() -> Result<()> {
    let Some(cases) = successful_cases()? else { return Ok(()) };
    let help = Command::new(binary()?).args(["serve", "--help"]).output()?;
    let help = String::from_utf8(help.stdout)?;
    let flags: BTreeSet<&str> = help.split_whitespace().filter_map(|word| word.strip_prefix("--")).collect();
    for (case, objects) in cases {
        let files = objects.iter().filter_map(|object| object.pointer("/data/config.yaml").and_then(Value::as_str));
        for text in files {
            let settings: BTreeMap<String, Value> = serde_saphyr::from_str(text)?;
            for key in settings.keys() {
                ensure!(flags.contains(key.as_str()), "{}: serve has no --{key}", case.name);
            }
        }
    }
    Ok(())
}

/// The list for `crowsnest credentials` is valid: the command proceeds to contact the cluster.
#[test]
fn the_list_of_credentials_is_valid() -> Result<()> {
    let Some(cases) = successful_cases()? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let missing = folder.path().join("nowhere.kubeconfig");
    for (case, objects) in cases {
        let lists =
            objects.iter().filter_map(|object| object.pointer("/data/credentials.yaml").and_then(Value::as_str));
        for text in lists {
            let file = folder.path().join("credentials.yaml");
            fs::write(&file, text)?;
            let mut command = Command::new(binary()?);
            command.args(["credentials", "-n", "crowsnest", "--file"]).arg(&file).arg("--kubeconfig").arg(&missing);
            let error = String::from_utf8(command.output()?.stderr)?;
            ensure!(
                error.contains("nowhere.kubeconfig") && !error.contains("credentials.yaml"),
                "{}: {error}",
                case.name
            );
        }
    }
    Ok(())
}

/// Prefixes of metric names.
const METRIC_PREFIXES: &str = "crowsnest_ cluster_ eviction_ policy_ resource_ binding_ work_ leader_ federatedhpa_ cronfederatedhpa_ karmada_ scheduler_ \
     create_ update_ delete_ workqueue_ controller_runtime_ rest_client_ certwatcher_ horizontal_";

/// Names of metrics in a query: identifiers followed by a brace, a bracket or an operator.
fn metrics_in(query: &str) -> BTreeSet<&str> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| METRIC_PREFIXES.split(' ').any(|family| word.starts_with(family))).collect()
}

#[test]
fn alerts_and_dashboards_use_existing_metrics() -> Result<()> {
    let mut queries = Vec::new();
    let alerts: Value = serde_saphyr::from_str(&fs::read_to_string(repository_root().join("deploy/alerts.yaml"))?)?;
    for rule in list(&alerts["groups"]).flat_map(|group| list(&group["rules"])) {
        ensure!(rule["labels"]["severity"].is_string() && rule["annotations"]["summary"].is_string(), "{rule:#}");
        queries.push(rule["expr"].as_str().context("the alert has no expression")?.to_owned());
    }
    for entry in fs::read_dir(repository_root().join("deploy/grafana"))? {
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(entry?.path())?)?;
        let mut ids = BTreeSet::new();
        for panel in list(&dashboard["panels"]) {
            ensure!(ids.insert(panel["id"].as_u64()), "a panel ID is used twice: {panel:#}");
            queries.extend(list(&panel["targets"]).filter_map(|target| target["expr"].as_str()).map(str::to_owned));
        }
    }
    let sources = read_sources()?;
    let mut count = 0;
    for query in &queries {
        for metric in metrics_in(query) {
            // Labels and matchers that look like metrics.
            if ["member_cluster", "resource_kind", "cluster"].contains(&metric) {
                continue;
            }
            count += 1;
            let base = ["_bucket", "_count", "_sum", "_total"].iter().find_map(|end| metric.strip_suffix(end));
            let is_defined = |name: &str| sources.contains(&format!("\"{name}\""));
            ensure!(is_defined(metric) || base.is_some_and(is_defined), "no source defines {metric}: {query}");
        }
    }
    ensure!(count > 40, "only {count} metrics were checked");
    Ok(())
}

/// The text of all sources that define metrics.
fn read_sources() -> Result<String> {
    let mut text = String::new();
    let mut folders: Vec<PathBuf> =
        ["api", "controllers", "index", "proxy", "server"].map(|at| repository_root().join(at)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                text += &fs::read_to_string(path)?;
            }
        }
    }
    Ok(text)
}
