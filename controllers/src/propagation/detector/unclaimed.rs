//! Unclaimed templates with their labels, so that a new or changed policy finds those that it selects without reading
//! others. A template is added before the policies are read: if a template and a policy are created concurrently, one
//! of them finds the other.

use std::collections::{BTreeMap, HashMap, HashSet};

use crowsnest_api::policy::ResourceSelector;
use crowsnest_apimachinery::names::{Gvr, NamespacedName};
use parking_lot::Mutex;

use super::TemplateKey;
use crate::runtime::dynamic_client::Resource;
use crowsnest_plan::selector::{ObjectFields, best_precision_of_fields};

type Labels = BTreeMap<String, String>;

/// Unclaimed templates by resource.
#[derive(Default)]
pub struct UnclaimedTemplates {
    templates: Mutex<HashMap<Gvr, BTreeMap<NamespacedName, Labels>>>,
}

impl UnclaimedTemplates {
    pub fn insert(&self, key: &TemplateKey, labels: Labels) {
        let mut templates = self.templates.lock();
        templates.entry(key.gvr.clone()).or_default().insert(NamespacedName::new(&*key.namespace, &*key.name), labels);
    }

    pub fn remove(&self, key: &TemplateKey) {
        if let Some(templates) = self.templates.lock().get_mut(&key.gvr) {
            templates.remove(&NamespacedName::new(&*key.namespace, &*key.name));
        }
    }

    /// Removes templates of a resource that are not in `keys`.
    pub fn retain(&self, gvr: &Gvr, keys: &HashSet<NamespacedName>) {
        if let Some(templates) = self.templates.lock().get_mut(gvr) {
            templates.retain(|key, _| keys.contains(key));
        }
    }

    /// Removes all templates of a resource that is no longer served.
    pub fn remove_resource(&self, gvr: &Gvr) {
        self.templates.lock().remove(gvr);
    }

    /// Templates of a resource that a selector matches, in one namespace or in all.
    pub fn find_matching(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        selector: &ResourceSelector,
    ) -> Vec<NamespacedName> {
        let templates = self.templates.lock();
        let Some(templates) = templates.get(&resource.gvr) else { return Vec::new() };
        let api_version = resource.gvr.api_version();
        let is_matching = |(key, labels): &(&NamespacedName, &Labels)| {
            let template_fields = ObjectFields {
                api_version: &api_version,
                kind: &resource.kind,
                namespace: &key.namespace,
                name: &key.name,
            };
            best_precision_of_fields(std::slice::from_ref(selector), template_fields, labels).is_some()
        };
        let from = NamespacedName::new(namespace.unwrap_or_default(), "");
        let in_namespace =
            templates.range(from..).take_while(|(key, _)| namespace.is_none_or(|namespace| key.namespace == namespace));
        in_namespace.filter(is_matching).map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn config_maps() -> Resource {
        Resource::builtin("", "v1", "configmaps", "ConfigMap", true)
    }

    fn key(namespace: &str, name: &str) -> TemplateKey {
        TemplateKey { gvr: config_maps().gvr, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[rstest]
    #[case::all(json!({}), None, &["a/x", "a/y", "b/x"])]
    #[case::of_a_namespace(json!({}), Some("a"), &["a/x", "a/y"])]
    #[case::of_a_namespace_without_any(json!({}), Some("aa"), &[])]
    #[case::by_labels(json!({"labelSelector": {"matchLabels": {"app": "web"}}}), None, &["a/y"])]
    #[case::by_name(json!({"name": "x"}), None, &["a/x", "b/x"])]
    #[case::of_another_version(json!({"apiVersion": "v2"}), None, &[])]
    fn selectors_match(#[case] selector: Value, #[case] namespace: Option<&str>, #[case] expected: &[&str]) {
        let unclaimed = UnclaimedTemplates::default();
        let labelled = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        for (namespace, name, labels) in [
            ("a", "x", Labels::new()),
            ("a", "y", labelled),
            ("b", "x", Labels::new()),
            ("b", "removed", Labels::new()),
        ] {
            unclaimed.insert(&key(namespace, name), labels);
        }
        unclaimed.remove(&key("b", "removed"));
        let mut merged = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        json_patch::merge(&mut merged, &selector);
        let selector = serde_json::from_value(merged).expect("a selector");
        let matching = unclaimed.find_matching(&config_maps(), namespace, &selector);
        let matching: Vec<String> = matching.iter().map(NamespacedName::to_string).collect();
        assert_eq!(matching, expected);
    }

    #[test]
    fn unlisted_templates_are_removed() {
        let unclaimed = UnclaimedTemplates::default();
        unclaimed.insert(&key("a", "x"), Labels::new());
        unclaimed.insert(&key("a", "y"), Labels::new());
        unclaimed.retain(&config_maps().gvr, &HashSet::from([NamespacedName::new("a", "y")]));
        let all: ResourceSelector =
            serde_json::from_value(json!({"apiVersion": "v1", "kind": "ConfigMap"})).expect("a selector");
        assert_eq!(unclaimed.find_matching(&config_maps(), None, &all), [NamespacedName::new("a", "y")]);
        unclaimed.remove_resource(&config_maps().gvr);
        assert!(unclaimed.find_matching(&config_maps(), None, &all).is_empty());
    }
}
