//! Interface to the objects that policies and webhooks read, and version conversion of a write's objects.

use async_trait::async_trait;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_registry::admission::Attributes;
use crowsnest_registry::error_without_reason;
use crowsnest_registry::storage::Revision;
use crowsnest_schema::SchemaRef;
use serde_json::Value;

/// The resource of a policy's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamResource {
    pub gvr: Gvr,
    pub namespaced: bool,
}

/// Access of the plugins to the objects and schemas of the server that runs them.
#[async_trait]
pub trait Environment: Send + Sync {
    /// Revision of all objects of a resource in the [group](crowsnest_registry::admission::GROUP) of policies and
    /// webhook configurations; it changes with each of these objects.
    fn revision(&self, resource: &'static str) -> Revision;

    /// Objects of a resource of that group, sorted by name.
    fn configurations(&self, resource: &'static str) -> Vec<Value>;

    /// Other groups and versions in which the resource of a write is served.
    fn equivalents(&self, a: &Attributes<'_>) -> Vec<Gvr>;

    /// Schema of a resource in this version; `None` if it has none.
    fn schema(&self, gvr: &Gvr) -> Option<SchemaRef>;

    /// The Namespace with this name; `None` if it does not exist.
    async fn namespace(&self, name: &str) -> Result<Option<Value>, String>;

    /// The resource that serves a kind; `None` if none does.
    async fn param_resource(&self, api_version: &str, kind: &str) -> Result<Option<ParamResource>, String>;

    /// One object of a resource; `None` if it does not exist.
    async fn param(&self, resource: &ParamResource, namespace: &str, name: &str) -> Result<Option<Value>, String>;

    /// All objects of a resource in a namespace, or of a cluster-scoped resource.
    async fn params(&self, resource: &ParamResource, namespace: &str) -> Result<Vec<Value>, String>;
}

/// The namespace of a namespaced write, read once per write. Rejects the write if the namespace cannot be read, since
/// its labels decide which policies and webhooks apply.
pub(crate) async fn namespace_of<'a>(
    environment: &dyn Environment,
    a: &'a Attributes<'_>,
) -> ApiResult<Option<&'a Value>> {
    let name = a.ctx.namespace.as_str();
    if !a.resource.namespaced || name.is_empty() {
        return Ok(None);
    }
    let namespace = a.namespace.get_or_read(environment.namespace(name)).await;
    namespace
        .map_err(|reason| ApiError::internal(format!("cannot read the namespace {name:?} for admission: {reason}")))
}

/// Converts an object to the version of `gvr`. Fails unless the conversion returns one object, like `webhookConverter`
/// of kube-apiserver.
async fn convert_one(gvr: &Gvr, a: &Attributes<'_>, object: Value) -> ApiResult<Value> {
    let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
    let (from, kind) = (text("apiVersion"), text("kind"));
    let converted = a.resource.strategy.convert(vec![object], &gvr.api_version()).await?;
    <[Value; 1]>::try_from(converted).map(|[object]| object).map_err(|objects| {
        let count = objects.len();
        error_without_reason(format!("conversion webhook for {from}, Kind={kind} returned {count} objects, expected 1"))
    })
}

/// Converts an object of the write to another version. The error is the message of the failed conversion.
pub(crate) async fn convert_to_version(
    gvr: &Gvr,
    a: &Attributes<'_>,
    object: Option<&Value>,
) -> Result<Option<Value>, String> {
    let Some(object) = object else { return Ok(None) };
    if *gvr == a.resource.gvr || a.subresource_of_other_kind().is_some() {
        return Ok(Some(object.clone()));
    }
    convert_one(gvr, a, object.clone()).await.map(Some).map_err(|error| error.message)
}

/// Converts an object that was changed by a policy or webhook back to the version of the request, and sets defaults.
/// `gvr` is the version in which it was changed. Bodies of subresources with a kind of their own, such as a `Binding`,
/// have one version and no defaults.
pub(crate) async fn convert_to_request_version(gvr: &Gvr, a: &Attributes<'_>, object: Value) -> ApiResult<Value> {
    if a.subresource_of_other_kind().is_some() {
        return Ok(object);
    }
    let mut object = if *gvr == a.resource.gvr { object } else { convert_one(&a.resource.gvr, a, object).await? };
    a.resource.strategy.default_admitted(&mut object);
    Ok(object)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crowsnest_apimachinery::field::FieldError;
    use crowsnest_apimachinery::user::UserInfo;
    use crowsnest_registry::admission::Operation;
    use crowsnest_registry::resource::{ResourceInfo, ResourceRef, StorageVersion};
    use crowsnest_registry::strategy::{RequestContext, Strategy, UpdateErrors};
    use crowsnest_schema::apply::VersionSchemas;
    use crowsnest_schema::table::Printer;
    use futures::future::BoxFuture;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// Counts reads of namespaces; the first one fails.
    #[derive(Default)]
    struct CountingEnvironment(AtomicUsize);

    #[async_trait]
    impl Environment for CountingEnvironment {
        fn revision(&self, _resource: &'static str) -> Revision {
            0
        }

        fn configurations(&self, _resource: &'static str) -> Vec<Value> {
            Vec::new()
        }

        fn equivalents(&self, _a: &Attributes<'_>) -> Vec<Gvr> {
            Vec::new()
        }

        fn schema(&self, _gvr: &Gvr) -> Option<SchemaRef> {
            None
        }

        async fn namespace(&self, name: &str) -> Result<Option<Value>, String> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                0 => Err("no connection".to_owned()),
                _ => Ok(Some(json!({"metadata": {"name": name}}))),
            }
        }

        async fn param_resource(&self, _api_version: &str, _kind: &str) -> Result<Option<ParamResource>, String> {
            Ok(None)
        }

        async fn param(
            &self,
            _resource: &ParamResource,
            _namespace: &str,
            _name: &str,
        ) -> Result<Option<Value>, String> {
            Ok(None)
        }

        async fn params(&self, _resource: &ParamResource, _namespace: &str) -> Result<Vec<Value>, String> {
            Ok(Vec::new())
        }
    }

    /// A kind whose conversion returns this many copies of the first object, in the new version.
    #[derive(Debug)]
    struct CopyingStrategy(usize);

    impl VersionSchemas for CopyingStrategy {}

    impl Strategy for CopyingStrategy {
        fn validate_create(&self, _ctx: &RequestContext, _object: &Value) -> Vec<FieldError> {
            Vec::new()
        }

        fn validate_update(&self, _ctx: &RequestContext, _old: &Value, _new: &Value) -> UpdateErrors {
            UpdateErrors::default()
        }

        fn validate_name(&self, _name: &str, _prefix: bool) -> Vec<String> {
            Vec::new()
        }

        fn schema(&self) -> Option<SchemaRef> {
            None
        }

        fn convert(&self, objects: Vec<Value>, to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>> {
            let mut object = objects[0].clone();
            object["apiVersion"] = to_api_version.into();
            Box::pin(std::future::ready(Ok(vec![object; self.0])))
        }
    }

    /// Resource `bricks` in version `v2` of `example.com`.
    fn bricks(converted_count: usize) -> ResourceRef {
        Arc::new(ResourceInfo {
            gvr: Gvr::new("example.com", "v2", "bricks"),
            kind: "Brick".to_owned(),
            list_kind: "BrickList".to_owned(),
            singular: "brick".to_owned(),
            namespaced: true,
            short_names: Vec::new(),
            categories: Vec::new(),
            verbs: vec!["create"],
            subresources: Vec::new(),
            scale: None,
            storage: StorageVersion { group: "example.com".to_owned(), version: "v2".to_owned() },
            printer: Printer::Generic,
            strategy: Arc::new(CopyingStrategy(converted_count)),
        })
    }

    fn request_context() -> RequestContext {
        RequestContext {
            user: UserInfo::default(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            dry_run: false,
            subresource: String::new(),
            namespace: "ns".to_owned(),
            record: None,
        }
    }

    #[tokio::test]
    async fn the_namespace_is_read_once_per_write() {
        let (ctx, resource, environment) = (request_context(), bricks(1), CountingEnvironment::default());
        let attributes = Attributes::new(&ctx, &resource, Operation::Create, "b", &Value::Null);
        let error = namespace_of(&environment, &attributes).await.unwrap_err();
        assert_eq!(
            error.message,
            "Internal error occurred: cannot read the namespace \"ns\" for admission: no connection"
        );
        // The error is not cached, and a later phase of the write shares the namespace.
        let namespace = json!({"metadata": {"name": "ns"}});
        assert_eq!(namespace_of(&environment, &attributes).await.unwrap(), Some(&namespace));
        let validation = Attributes {
            namespace: attributes.namespace.clone(),
            ..Attributes::new(&ctx, &resource, Operation::Create, "b", &Value::Null)
        };
        for phase in [&attributes, &validation] {
            assert_eq!(namespace_of(&environment, phase).await.unwrap(), Some(&namespace));
        }
        assert_eq!(environment.0.load(Ordering::Relaxed), 2);
    }

    #[rstest]
    #[case::no_object(0, Err("conversion webhook for example.com/v1, Kind=Brick returned 0 objects, expected 1"))]
    #[case::one_object(1, Ok("example.com/v2"))]
    #[case::several_objects(2, Err("conversion webhook for example.com/v1, Kind=Brick returned 2 objects, expected 1"))]
    #[tokio::test]
    async fn a_conversion_must_return_one_object(#[case] converted_count: usize, #[case] expected: Result<&str, &str>) {
        let (ctx, resource) = (request_context(), bricks(converted_count));
        let attributes = Attributes::new(&ctx, &resource, Operation::Create, "b", &Value::Null);
        let v1 = Gvr::new("example.com", "v1", "bricks");
        let object = json!({"apiVersion": "example.com/v1", "kind": "Brick"});
        let converted = convert_to_request_version(&v1, &attributes, object.clone()).await;
        let converted = converted.map_err(|error| error.message);
        let converted = converted.as_ref().map(|object| object["apiVersion"].as_str().unwrap());
        assert_eq!(converted.map_err(String::as_str), expected);
        let v3 = Gvr::new("example.com", "v3", "bricks");
        let converted = convert_to_version(&v3, &attributes, Some(&object)).await;
        assert_eq!(converted.err().as_deref(), expected.err());
    }
}
