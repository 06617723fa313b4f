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
const OLD: &str = "kubernetes.io/ingress.class";
const DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";

/// The admission plugin.
pub struct DefaultIngressClass(pub Weak<Registry>);

impl DefaultIngressClass {
    fn newest(&self) -> Option<String> {
        let registry = self.0.upgrade()?;
        let classes = registry.store.objects(&ResourceKey::new(GROUP, "ingressclasses"), "").into_iter();
        let defaults = classes.filter(|class| class["metadata"]["annotations"][DEFAULT] == "true");
        let made = |class: &Value| class["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
        let newest = defaults.min_by_key(|class| (Reverse(made(class)), class.name().to_owned()));
        newest.map(|class| class.name().to_owned())
    }
}

#[async_trait]
impl Admission for DefaultIngressClass {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        let created = a.operation == Operation::Create && a.is_for(GROUP, "ingresses");
        let Some(ingress) = object.filter(|_| created) else { return Ok(()) };
        let names_one =
            !ingress["spec"]["ingressClassName"].is_null() || !ingress["metadata"]["annotations"][OLD].is_null();
        if !names_one
            && let Some(class) = self.newest()
            && let Some(spec) = ingress["spec"].as_object_mut()
        {
            spec.insert("ingressClassName".into(), class.into());
        }
        Ok(())
    }
}
