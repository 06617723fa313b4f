//! What objects beside pods and their templates refer to.

use super::Source;
use super::view::Str;
use serde::Deserialize;

type Text<'a> = Option<Str<'a>>;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Named<'a> {
    #[serde(borrow)]
    name: Str<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Target<'a> {
    #[serde(borrow)]
    kind: Str<'a>,
    #[serde(borrow)]
    name: Str<'a>,
    #[serde(borrow)]
    namespace: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata<'a> {
    #[serde(borrow)]
    namespace: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec<'a, T: Default> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    spec: Option<T>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct IngressSpec<'a> {
    #[serde(borrow)]
    default_backend: Option<Backend<'a>>,
    #[serde(borrow)]
    rules: Option<Vec<IngressRule<'a>>>,
    #[serde(borrow)]
    tls: Option<Vec<IngressTls<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct IngressRule<'a> {
    #[serde(borrow)]
    http: Option<IngressHttp<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct IngressHttp<'a> {
    #[serde(borrow)]
    paths: Option<Vec<IngressPath<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct IngressPath<'a> {
    #[serde(borrow)]
    backend: Option<Backend<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Backend<'a> {
    #[serde(borrow)]
    service: Option<Named<'a>>,
    #[serde(borrow)]
    resource: Option<Target<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct IngressTls<'a> {
    #[serde(borrow)]
    secret_name: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct AutoscalerSpec<'a> {
    #[serde(borrow)]
    scale_target_ref: Target<'a>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct VolumeSpec<'a> {
    #[serde(borrow)]
    volume_name: Text<'a>,
    #[serde(borrow)]
    storage_class_name: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Binding<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    role_ref: Target<'a>,
    #[serde(borrow)]
    subjects: Option<Vec<Target<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Account<'a> {
    #[serde(borrow)]
    secrets: Option<Vec<Named<'a>>>,
    #[serde(borrow)]
    image_pull_secrets: Option<Vec<Named<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Slice<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    endpoints: Option<Vec<Endpoint<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Endpoint<'a> {
    #[serde(borrow)]
    target_ref: Option<Target<'a>>,
}

/// As `kind/name`, lower-case kinds. Only objects of the same namespace and cluster-scoped ones can be named so.
#[derive(Default)]
struct Uses(Vec<String>);

impl Uses {
    fn add(&mut self, kind: &str, name: &str) {
        if !kind.is_empty() && !name.is_empty() {
            self.0.push(format!("{}/{name}", kind.to_lowercase()));
        }
    }

    fn target(&mut self, target: &Target<'_>, own: Option<&str>) {
        let elsewhere = target.namespace.as_deref().is_some_and(|namespace| Some(namespace) != own);
        if !elsewhere {
            self.add(&target.kind, &target.name);
        }
    }

    fn backend(&mut self, backend: &Backend<'_>) {
        backend.service.iter().for_each(|service| self.add("service", &service.name));
        backend.resource.iter().for_each(|resource| self.add(&resource.kind, &resource.name));
    }
}

/// What an object of a kind that is not printed elsewhere refers to.
pub(super) fn uses<'a>(group: &str, kind: &str, source: impl Source<'a>) -> Vec<String> {
    let mut uses = Uses::default();
    match (group, kind) {
        ("networking.k8s.io", "Ingress") => {
            let spec = source.read::<Spec<'a, IngressSpec<'a>>>().and_then(|ingress| ingress.spec).unwrap_or_default();
            spec.default_backend.iter().for_each(|backend| uses.backend(backend));
            let paths = spec.rules.iter().flatten().filter_map(|rule| rule.http.as_ref()?.paths.as_ref()).flatten();
            paths.filter_map(|path| path.backend.as_ref()).for_each(|backend| uses.backend(backend));
            let secrets = spec.tls.iter().flatten().filter_map(|tls| tls.secret_name.as_deref());
            secrets.for_each(|secret| uses.add("secret", secret));
        }
        ("autoscaling", "HorizontalPodAutoscaler") => {
            let scaler = source.read::<Spec<'a, AutoscalerSpec<'a>>>().unwrap_or_default();
            let target = scaler.spec.unwrap_or_default().scale_target_ref;
            uses.target(&target, scaler.metadata.namespace.as_deref());
        }
        ("", "PersistentVolumeClaim" | "PersistentVolume") => {
            let spec = source.read::<Spec<'a, VolumeSpec<'a>>>().and_then(|volume| volume.spec).unwrap_or_default();
            uses.add("persistentvolume", spec.volume_name.as_deref().unwrap_or_default());
            uses.add("storageclass", spec.storage_class_name.as_deref().unwrap_or_default());
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            let binding = source.read::<Binding<'a>>().unwrap_or_default();
            uses.add(&binding.role_ref.kind, &binding.role_ref.name);
            let own = binding.metadata.namespace.as_deref();
            let accounts = binding.subjects.iter().flatten().filter(|subject| subject.kind == "ServiceAccount");
            accounts.for_each(|account| uses.target(account, own));
        }
        ("", "ServiceAccount") => {
            let account = source.read::<Account<'a>>().unwrap_or_default();
            let secrets = account.secrets.iter().chain(&account.image_pull_secrets).flatten();
            secrets.for_each(|secret| uses.add("secret", &secret.name));
        }
        ("discovery.k8s.io", "EndpointSlice") => {
            let slice = source.read::<Slice<'a>>().unwrap_or_default();
            let targets = slice.endpoints.iter().flatten().filter_map(|endpoint| endpoint.target_ref.as_ref());
            targets.for_each(|target| uses.target(target, slice.metadata.namespace.as_deref()));
        }
        _ => {}
    }
    uses.0
}

#[cfg(test)]
mod tests {
    use crate::print::print;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[rstest]
    #[case::ingress("networking.k8s.io", "Ingress", json!({"spec": {"defaultBackend": {"service": {"name": "front"}}, "rules":
        [{"host": "a"}, {"http": {"paths": [{"backend": {"service": {"name": "web", "port": {"number": 80}}}}]}}],
        "tls": [{"secretName": "tls"}, {}]}}), &["secret/tls", "service/front", "service/web"])]
    #[case::autoscaler("autoscaling", "HorizontalPodAutoscaler",
        json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}}}), &["deployment/web"])]
    #[case::claim("", "PersistentVolumeClaim", json!({"spec": {"volumeName": "pv-1", "storageClassName": "fast"}}),
        &["persistentvolume/pv-1", "storageclass/fast"])]
    #[case::role("rbac.authorization.k8s.io", "RoleBinding", json!({"metadata": {"namespace": "a"},
        "roleRef": {"kind": "ClusterRole", "name": "view"}, "subjects": [{"kind": "User", "name": "ann"},
        {"kind": "ServiceAccount", "name": "here", "namespace": "a"}, {"kind": "ServiceAccount", "name": "there", "namespace": "b"}]}),
        &["clusterrole/view", "serviceaccount/here"])]
    #[case::account("", "ServiceAccount", json!({"secrets": [{"name": "s"}], "imagePullSecrets": [{"name": "p"}]}), &["secret/p", "secret/s"])]
    #[case::slice("discovery.k8s.io", "EndpointSlice", json!({"endpoints": [{"nodeName": "n",
        "targetRef": {"kind": "Pod", "name": "web-0"}}, {}]}), &["pod/web-0"])]
    #[case::of_another_shape("networking.k8s.io", "Ingress", json!({"spec": "none"}), &[])]
    fn references_are_read(#[case] group: &str, #[case] kind: &str, #[case] object: Value, #[case] expected: &[&str]) {
        assert_eq!(print(group, kind, &object).uses, expected);
        assert_eq!(print(group, kind, object.to_string().as_bytes()).uses, expected);
    }
}
