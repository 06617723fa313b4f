//! References of objects other than pods and pod templates.

use super::Source;
use super::borrowed::{Str, null_as_default};
use super::view::{Metadata, NameRef};
use crate::views;
use serde::Deserialize;

type Text<'a> = Option<Str<'a>>;

views! {
    Target { kind: Str<'a>, name: Str<'a>, namespace: Text<'a> }
    Ingress { spec: IngressSpec<'a> }
    IngressSpec { default_backend: Option<Backend<'a>>, rules: Vec<IngressRule<'a>>, tls: Vec<IngressTls<'a>> }
    IngressRule { http: IngressHttp<'a> }
    IngressHttp { paths: Vec<IngressPath<'a>> }
    IngressPath { backend: Backend<'a> }
    Backend { service: Option<NameRef<'a>>, resource: Option<Target<'a>> }
    IngressTls { secret_name: Str<'a> }
    Autoscaler { metadata: Metadata<'a>, spec: AutoscalerSpec<'a> }
    AutoscalerSpec { scale_target_ref: Target<'a> }
    Volume { spec: VolumeSpec<'a> }
    VolumeSpec { volume_name: Str<'a>, storage_class_name: Str<'a> }
    Binding { metadata: Metadata<'a>, role_ref: Target<'a>, subjects: Vec<Target<'a>> }
    Account { secrets: Vec<NameRef<'a>>, image_pull_secrets: Vec<NameRef<'a>> }
    Slice { metadata: Metadata<'a>, endpoints: Vec<Endpoint<'a>> }
    Endpoint { target_ref: Option<Target<'a>> }
}

/// As `kind/name` in lower case. Only objects in the same namespace and cluster-scoped ones.
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

/// References of an object whose kind has no other printer.
pub(super) fn uses<'a>(group: &str, kind: &str, source: impl Source<'a>) -> Vec<String> {
    let mut uses = Uses::default();
    match (group, kind) {
        ("networking.k8s.io", "Ingress") => {
            let spec = source.read::<Ingress<'a>>().unwrap_or_default().spec;
            spec.default_backend.iter().for_each(|backend| uses.backend(backend));
            let paths = spec.rules.iter().flat_map(|rule| &rule.http.paths);
            paths.for_each(|path| uses.backend(&path.backend));
            spec.tls.iter().for_each(|tls| uses.add("secret", &tls.secret_name));
        }
        ("autoscaling", "HorizontalPodAutoscaler") => {
            let scaler = source.read::<Autoscaler<'a>>().unwrap_or_default();
            uses.target(&scaler.spec.scale_target_ref, scaler.metadata.namespace.as_deref());
        }
        ("", "PersistentVolumeClaim" | "PersistentVolume") => {
            let spec = source.read::<Volume<'a>>().unwrap_or_default().spec;
            uses.add("persistentvolume", &spec.volume_name);
            uses.add("storageclass", &spec.storage_class_name);
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            let binding = source.read::<Binding<'a>>().unwrap_or_default();
            uses.add(&binding.role_ref.kind, &binding.role_ref.name);
            let own = binding.metadata.namespace.as_deref();
            let accounts = binding.subjects.iter().filter(|subject| subject.kind == "ServiceAccount");
            accounts.for_each(|account| uses.target(account, own));
        }
        ("", "ServiceAccount") => {
            let account = source.read::<Account<'a>>().unwrap_or_default();
            let secrets = account.secrets.iter().chain(&account.image_pull_secrets);
            secrets.for_each(|secret| uses.add("secret", &secret.name));
        }
        ("discovery.k8s.io", "EndpointSlice") => {
            let slice = source.read::<Slice<'a>>().unwrap_or_default();
            let targets = slice.endpoints.iter().filter_map(|endpoint| endpoint.target_ref.as_ref());
            targets.for_each(|target| uses.target(target, slice.metadata.namespace.as_deref()));
        }
        _ => {}
    }
    uses.0
}

#[cfg(test)]
mod tests {
    use crate::printers::print;
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
    #[case::nulls("networking.k8s.io", "Ingress", json!({"metadata": null, "spec": {"rules": null, "tls": [{"secretName": null},
        {"secretName": "tls"}]}}), &["secret/tls"])]
    #[case::of_another_shape("networking.k8s.io", "Ingress", json!({"spec": "none"}), &[])]
    fn references_are_read(#[case] group: &str, #[case] kind: &str, #[case] object: Value, #[case] expected: &[&str]) {
        assert_eq!(print(group, kind, &object).uses, expected);
        assert_eq!(print(group, kind, object.to_string().as_bytes()).uses, expected);
    }
}
