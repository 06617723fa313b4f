//! `DefaultIngressClass` admission: an Ingress without a class gets the newest of the default classes.

use std::cmp::Reverse;
use std::sync::Weak;

use async_trait::async_trait;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::Registry;
use crowsnest_registry::admission::{Admission, Mutation, Operation};
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::ResourceKey;
use serde_json::Value;

const GROUP: &str = "networking.k8s.io";
/// Deprecated annotation that names the class of an Ingress.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
/// Annotation of default IngressClasses.
const IS_DEFAULT_ANNOTATION: &str = "ingressclass.kubernetes.io/is-default-class";

/// The admission plugin.
pub struct DefaultIngressClass(pub Weak<Registry>);

impl DefaultIngressClass {
    /// Name of the newest default class; of several, the first by name.
    fn newest_default_class(&self) -> Option<String> {
        let registry = self.0.upgrade()?;
        let classes = registry.store.objects(&ResourceKey::new(GROUP, "ingressclasses"), "").into_iter();
        let defaults = classes.filter(|class| class["metadata"]["annotations"][IS_DEFAULT_ANNOTATION] == "true");
        let created_at = |class: &Value| class["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
        let newest = defaults.min_by_key(|class| (Reverse(created_at(class)), class.name().to_owned()));
        newest.map(|class| class.name().to_owned())
    }
}

#[async_trait]
impl Admission for DefaultIngressClass {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        let is_create = a.operation == Operation::Create && a.is_for(GROUP, "ingresses");
        let Some(ingress) = object.filter(|_| is_create) else { return Ok(()) };
        let has_class = !ingress["spec"]["ingressClassName"].is_null()
            || !ingress["metadata"]["annotations"][CLASS_ANNOTATION].is_null();
        if !has_class
            && let Some(class) = self.newest_default_class()
            && let Some(spec) = ingress["spec"].as_object_mut()
        {
            spec.insert("ingressClassName".into(), class.into());
        }
        Ok(())
    }
}
