//! Objects of an agent: the kubeconfig of the control plane and, in its cluster, ServiceAccount, RBAC and Deployment,
//! with the names that `karmadactl register` uses. Has no side effects except for writing the kubeconfig.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::yaml;
use crowsnest_members::join::certificates_as_pem;
use crowsnest_members::unregister::AGENT;
use serde_json::{Value, json};

use super::discovery::ControlPlane;
use crowsnest_agent::agent::certificate::IssuedCertificate;

pub(super) const ACCOUNT: &str = "karmada-agent-sa";
pub(super) const SECRET: &str = "karmada-kubeconfig";
const KUBECONFIG_FOLDER: &str = "/etc/karmada/kubeconfig";
/// Port of the agent's health endpoints.
const HEALTH_PORT: u16 = 10357;
const METRICS_PORT: u16 = 8080;
const RBAC: &str = "rbac.authorization.k8s.io";

/// The agent's kubeconfig of the control plane, as YAML.
pub(super) fn kubeconfig(
    control_plane: &ControlPlane,
    proxy: Option<&http::Uri>,
    issued: &IssuedCertificate,
) -> String {
    let authority = certificates_as_pem(&control_plane.authority);
    let server = control_plane.server.to_string();
    let mut cluster =
        json!({"server": server.trim_end_matches('/'), "certificate-authority-data": STANDARD.encode(authority)});
    if let Some(proxy) = proxy {
        cluster["proxy-url"] = proxy.to_string().into();
    }
    let user = json!({"client-certificate-data": STANDARD.encode(&issued.certificate),
        "client-key-data": STANDARD.encode(&issued.key)});
    yaml::to_yaml(&json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "agent", "preferences": {},
        "clusters": [{"name": "control-plane", "cluster": cluster}],
        "users": [{"name": "agent", "user": user}],
        "contexts": [{"name": "agent", "context": {"cluster": "control-plane", "user": "agent"}}],
    }))
}

/// Writes a kubeconfig that only its owner can read.
pub(super) fn write_kubeconfig(file: &Path, kubeconfig: &str) -> anyhow::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let result = options.open(file).and_then(|mut file| {
        // An existing file may have had wider permissions.
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        file.write_all(kubeconfig.as_bytes())
    });
    result.with_context(|| format!("cannot write {}", file.display()))
}

/// Settings of the agent's Deployment.
pub(super) struct AgentDeployment<'a> {
    pub(super) name: &'a ClusterName,
    pub(super) image: &'a str,
    pub(super) replicas: i32,
    pub(super) namespace: &'a str,
    pub(super) cluster_namespace: &'a str,
    pub(super) provider: Option<&'a str>,
    pub(super) region: Option<&'a str>,
    pub(super) zones: &'a [String],
    /// Lifetime of renewed certificates in seconds; `None` disables renewal.
    pub(super) renewal_seconds: Option<i32>,
}

impl AgentDeployment<'_> {
    pub(super) fn manifests(&self, kubeconfig: &str) -> Vec<Value> {
        let namespace = self.namespace;
        let all_permissions = json!([
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["get"]}]);
        vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": namespace}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": namespace},
                "data": {SECRET: STANDARD.encode(kubeconfig)}}),
            // The agent creates service accounts and grants them permissions, which requires holding all of them (RBAC
            // escalation check).
            json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": AGENT}, "rules": all_permissions}),
            json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": AGENT},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": AGENT},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}]}),
            self.deployment(),
        ]
    }

    fn deployment(&self) -> Value {
        let mut command = vec![
            "agent".to_owned(),
            format!("--cluster-name={}", self.name),
            format!("--control-plane-kubeconfig={KUBECONFIG_FOLDER}/{SECRET}"),
            format!("--cluster-namespace={}", self.cluster_namespace),
            format!("--health-probe-bind-address=:{HEALTH_PORT}"),
            format!("--metrics-bind-address=:{METRICS_PORT}"),
        ];
        command.extend(self.provider.map(|provider| format!("--cluster-provider={provider}")));
        command.extend(self.region.map(|region| format!("--cluster-region={region}")));
        if !self.zones.is_empty() {
            command.push(format!("--cluster-zones={}", self.zones.join(",")));
        }
        if let Some(seconds) = self.renewal_seconds {
            command.push("--enable-cert-rotation".to_owned());
            command.push(format!("--control-plane-kubeconfig-secret={}/{SECRET}", self.namespace));
            command.push(format!("--cert-expiration-seconds={seconds}"));
        }
        let labels = json!({"app": AGENT});
        let probe = |path: &str| json!({"path": path, "port": "health"});
        // The same values as in the agent's Helm chart.
        let container = json!({"name": AGENT, "image": self.image, "args": command,
            "ports": [{"name": "health", "containerPort": HEALTH_PORT}, {"name": "metrics", "containerPort": METRICS_PORT}],
            "startupProbe": {"httpGet": probe("/livez"), "periodSeconds": 2, "failureThreshold": 60},
            "livenessProbe":
                {"httpGet": probe("/livez"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
            "readinessProbe": {"httpGet": probe("/readyz"), "periodSeconds": 5, "timeoutSeconds": 5},
            "volumeMounts": [{"name": "kubeconfig", "mountPath": KUBECONFIG_FOLDER, "readOnly": true}]});
        let pod = json!({"serviceAccountName": ACCOUNT, "containers": [container],
            "volumes": [{"name": "kubeconfig", "secret": {"secretName": SECRET}}]});
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": AGENT, "namespace": self.namespace, "labels": labels},
            "spec": {"replicas": self.replicas, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod}}})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::Probe;

    #[test]
    fn deployment_passes_the_flags() {
        let name = ClusterName::parse("oslo").unwrap();
        let zones = ["a".to_owned(), "b".to_owned()];
        let agent = AgentDeployment {
            name: &name,
            image: "crowsnest:1",
            replicas: 2,
            namespace: "karmada-system",
            cluster_namespace: "karmada-cluster",
            provider: None,
            region: Some("north"),
            zones: &zones,
            renewal_seconds: Some(3600),
        };
        let manifests = agent.manifests("x");
        let deployment: Deployment = serde_json::from_value(manifests[5].clone()).unwrap();
        let pod = deployment.spec.template.spec.unwrap();
        assert_eq!(
            pod.containers[0].args.as_ref().unwrap().join(" "),
            "agent --cluster-name=oslo --control-plane-kubeconfig=/etc/karmada/kubeconfig/karmada-kubeconfig \
             --cluster-namespace=karmada-cluster --health-probe-bind-address=:10357 --metrics-bind-address=:8080 \
             --cluster-region=north --cluster-zones=a,b \
             --enable-cert-rotation --control-plane-kubeconfig-secret=karmada-system/karmada-kubeconfig \
             --cert-expiration-seconds=3600"
        );
        assert_eq!(pod.service_account_name.as_deref(), Some("karmada-agent-sa"));
        let container = &pod.containers[0];
        let path_of = |probe: &Option<Probe>| probe.as_ref().and_then(|probe| probe.http_get.as_ref()?.path.clone());
        assert_eq!(path_of(&container.startup_probe).as_deref(), Some("/livez"));
        assert_eq!(path_of(&container.liveness_probe).as_deref(), Some("/livez"));
        assert_eq!(path_of(&container.readiness_probe).as_deref(), Some("/readyz"));
        let ports = container.ports.iter().flatten().map(|port| port.container_port);
        assert_eq!(ports.collect::<Vec<_>>(), [10357, 8080]);
    }
}
