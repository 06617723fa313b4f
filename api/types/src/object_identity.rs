//! Identity of an object: API group, kind, namespace and name, as in Kubernetes' "Object Names and IDs". The version is not part of it.
//!
//! Names that Karmada derives from an object contain neither its group nor its exact spelling, so that two objects can have the same
//! derived name. If the default name is taken or invalid, the object gets a name with a hash of its identity.

use std::fmt;

use crowsnest_apimachinery::names::ObjectKey;
use crowsnest_apimachinery::names::format::validate_dns1123_subdomain;
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use crate::keys::BindingKey;
use crate::names::{binding_name, fnv1a, work_name};
use crate::work::ObjectReference;

/// Maximum length of the name of an object of a custom resource, in bytes.
const MAX_NAME: usize = 253;

/// Identity of an object of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectIdentity<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    pub kind: &'a str,
    /// Empty for a cluster-scoped object.
    pub namespace: &'a str,
    pub name: &'a str,
}

impl<'a> ObjectIdentity<'a> {
    pub fn new(api_version: &'a str, kind: &'a str, namespace: &'a str, name: &'a str) -> Self {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        ObjectIdentity { group, kind, namespace, name }
    }

    pub fn from_object(object: &'a Value) -> Self {
        ObjectIdentity::new(
            unstructured::api_version(object),
            unstructured::kind(object),
            unstructured::namespace(object),
            unstructured::name(object),
        )
    }

    /// Identity of the object that a reference names.
    pub fn from_reference(reference: &'a ObjectReference) -> Self {
        ObjectIdentity::new(&reference.api_version, &reference.kind, &reference.namespace, &reference.name)
    }

    /// Identity of the object that a binding refers to.
    pub fn template_of(binding: &'a Value) -> Self {
        let text = |field| unstructured::text(binding, &["spec", "resource", field]);
        ObjectIdentity::new(text("apiVersion"), text("kind"), text("namespace"), text("name"))
    }

    /// True if a binding refers to this object.
    pub fn is_template_of(&self, binding: &Value) -> bool {
        ObjectIdentity::template_of(binding) == *self
    }

    /// Key of the binding with Karmada's name, `<name>-<kind>`; [`Self::hash_suffixed_binding_key`] if that is not a valid name.
    pub fn default_binding_key(&self) -> BindingKey {
        let default =
            Some(binding_name(self.kind, self.name)).filter(|name| validate_dns1123_subdomain(name).is_empty());
        BindingKey::new(self.namespace, default.unwrap_or_else(|| self.hash_suffixed_name()))
    }

    /// Key of the object's binding if the binding with Karmada's name belongs to another object.
    pub fn hash_suffixed_binding_key(&self) -> BindingKey {
        BindingKey::new(self.namespace, self.hash_suffixed_name())
    }

    /// Name of the Works of this object's binding: Karmada's name; the name with a hash suffix if `binding` has it as
    /// well, or if Karmada's name is not valid.
    pub fn work_name(&self, binding: &str) -> String {
        let suffixed = self.hash_suffixed_name();
        let default = (binding != suffixed).then(|| work_name(self.kind, self.name, self.namespace));
        default.filter(|name| validate_dns1123_subdomain(name).is_empty()).unwrap_or(suffixed)
    }

    /// `<name>-<8 hexadecimal digits>`, a valid name of any object. The digits are the FNV-1a hash (32 bits) of the
    /// identity, including the namespace, because an execution namespace contains Works of objects of all namespaces.
    /// Hashes can collide: `binding_key_of` and `write_work` of the controllers refuse a name that another object uses.
    fn hash_suffixed_name(&self) -> String {
        let identity = [self.group, self.kind, self.namespace, self.name].join("/");
        let suffix = format!("-{:08x}", fnv1a(&identity));
        let sanitize = |character: char| match character.to_ascii_lowercase() {
            ':' => '.',
            character if character.is_ascii_lowercase() || character.is_ascii_digit() || character == '.' => character,
            _ => '-',
        };
        let sanitized: String = self.name.chars().map(sanitize).take(MAX_NAME - suffix.len()).collect();
        let labels = sanitized.split('.').map(|label| label.trim_matches('-')).filter(|label| !label.is_empty());
        let mut name = labels.collect::<Vec<_>>().join(".");
        if name.is_empty() {
            name.push_str("object");
        }
        name + &suffix
    }
}

impl From<ObjectIdentity<'_>> for ObjectKey {
    fn from(identity: ObjectIdentity<'_>) -> Self {
        ObjectKey::new(identity.group, identity.kind, identity.namespace, identity.name)
    }
}

impl fmt::Display for ObjectIdentity<'_> {
    /// `Deployment.apps default/web`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        ObjectKey::from(*self).fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::core_service("v1 Service f02 web", "web-service", "web-", "web-5f64cdb874")]
    #[case::other_group("serving.example.dev/v1 Service f02 web", "web-service", "web-", "web-5f64cdb874")]
    #[case::other_version("serving.example.dev/v2 Service f02 web", "web-service", "web-", "web-5f64cdb874")]
    #[case::colon(
        "rbac.authorization.k8s.io/v1 ClusterRole - f02:view",
        "f02.view-clusterrole",
        "f02.view-",
        "f02.view-"
    )]
    #[case::capitals(
        "rbac.authorization.k8s.io/v1 ClusterRole - F02.View",
        "f02.view-clusterrole",
        "f02.view-",
        "f02.view-"
    )]
    #[case::invalid_name(
        "rbac.authorization.k8s.io/v1 Role a system::a_b",
        "system.a-b-",
        "system.a-b-",
        "system.a-b-"
    )]
    #[case::no_letter("rbac.authorization.k8s.io/v1 Role a ::", "object-", "object-", "object-")]
    fn derived_names(#[case] object: &str, #[case] default: &str, #[case] suffixed: &str, #[case] work: &str) {
        let parts: Vec<&str> = object.split(' ').map(|part| if part == "-" { "" } else { part }).collect();
        let identity = ObjectIdentity::new(parts[0], parts[1], parts[2], parts[3]);
        let assert_name = |key: BindingKey, expected: &str| {
            assert_eq!((key.namespace.as_str(), validate_dns1123_subdomain(&key.name)), (parts[2], vec![]));
            assert!(key.name.starts_with(expected), "{}", key.name);
        };
        assert_name(identity.default_binding_key(), default);
        assert_name(identity.hash_suffixed_binding_key(), suffixed);
        assert_name(BindingKey::new(parts[2], identity.work_name(&identity.default_binding_key().name)), work);
        let suffixed = identity.hash_suffixed_binding_key().name.clone();
        assert_eq!(identity.work_name(&suffixed), suffixed);
    }

    #[test]
    fn hash_suffixed_names_are_different_where_default_ones_are_equal() {
        let rbac = "rbac.authorization.k8s.io/v1";
        let identities = [
            ObjectIdentity::new("v1", "Service", "f02", "web"),
            ObjectIdentity::new("serving.example.dev/v1", "Service", "f02", "web"),
            ObjectIdentity::new(rbac, "ClusterRole", "", "f02:view"),
            ObjectIdentity::new(rbac, "ClusterRole", "", "f02.view"),
            ObjectIdentity::new(rbac, "ClusterRole", "", "F02.View"),
        ];
        let names: std::collections::BTreeSet<String> =
            identities.iter().map(ObjectIdentity::hash_suffixed_name).collect();
        assert_eq!(names.len(), identities.len());
    }

    #[rstest]
    #[case::longest_usual(243, false)]
    #[case::too_long(244, true)]
    #[case::longest(253, true)]
    fn names_have_at_most_253_bytes(#[case] length: usize, #[case] shortened: bool) {
        let name = "n".repeat(length);
        let identity = ObjectIdentity::new("v1", "ConfigMap", "f02", &name);
        let key = identity.default_binding_key();
        assert_eq!((key == identity.hash_suffixed_binding_key(), key.name.len()), (shortened, 253));
        assert!(identity.work_name(&key.name).len() <= 253);
    }

    #[rstest]
    #[case::same("serving.example.dev/v1", "Service", "web", true)]
    #[case::other_version("serving.example.dev/v1beta1", "Service", "web", true)]
    #[case::other_group("v1", "Service", "web", false)]
    #[case::other_case("serving.example.dev/v1", "Service", "Web", false)]
    fn bindings_are_found_by_reference(
        #[case] api_version: &str,
        #[case] kind: &str,
        #[case] name: &str,
        #[case] expected: bool,
    ) {
        let resource = json!({"apiVersion": api_version, "kind": kind, "namespace": "f02", "name": name});
        let object = json!({"apiVersion": "serving.example.dev/v1", "kind": "Service",
            "metadata": {"namespace": "f02", "name": "web"}});
        let binding = json!({"spec": {"resource": resource}});
        assert_eq!(ObjectIdentity::from_object(&object).is_template_of(&binding), expected);
    }
}
