//! Admission of the kinds that this server serves, by the policies and webhooks of the control plane.
//!
//! The control plane passes requests for these kinds on without admission, as kube-apiserver does for all aggregated
//! APIs. It admits only writes of the objects of the internal group, whose names no policy of a user matches.

mod authorizer;
mod configurations;
mod environment;
pub(crate) mod owner;
mod resource;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crowsnest_admission_plugins::Environment;
use crowsnest_admission_plugins::policy::{MutatingPolicies, ValidatingPolicies};
use crowsnest_admission_plugins::webhook::Webhooks;
use crowsnest_admission_plugins::webhook::client::WebhookClient;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apiserver::outbound::{Endpoint, OutboundClients, ResolveError, ServiceResolver};
use crowsnest_apiserver::warnings;
use crowsnest_cel::authorizer::AccessChecker;
use crowsnest_process::reply::{Body, StatusResponse};
use crowsnest_registry::admission::{self, Admission, Attributes, GROUP, NamespaceCache, Operation};
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::strategy;
use http::Response;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::configurations::Configurations;
use crate::request::authentication::DelegatedAuth;
use crate::request::context::RequestContext;
use crate::resource::Connect;
use crate::resource::registry::ResourceRoute;

/// Time that a request waits for the first list of all policies and webhooks, as in kube-apiserver.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// The policies and webhooks of the control plane, in the order of kube-apiserver's plugins.
pub struct AdmissionChain {
    control_plane: kube::Client,
    configurations: Arc<Configurations>,
    mutating: Arc<MutatingPolicies>,
    validating: Arc<ValidatingPolicies>,
    webhooks: Arc<Webhooks>,
    steps: [Arc<dyn Admission>; 3],
}

/// Resolves Services by the DNS of the cluster in which this process runs.
pub struct ClusterDns;

impl ServiceResolver for ClusterDns {
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<Endpoint, ResolveError> {
        Ok(Endpoint::Address { host: format!("{name}.{namespace}.svc"), port })
    }
}

impl AdmissionChain {
    /// Webhooks that name a Service are called at its address in `services`. Requests are refused until [`Self::run`]
    /// has listed all policies and webhooks.
    pub fn new(control_plane: kube::Client, delegated: DelegatedAuth, services: Arc<dyn ServiceResolver>) -> Self {
        let configurations = Arc::new(Configurations::default());
        let objects = environment::ControlPlane::new(control_plane.clone(), Arc::clone(&configurations));
        let environment: Arc<dyn Environment> = Arc::new(objects);
        let access_checker: Arc<dyn AccessChecker> = Arc::new(authorizer::AccessReviewChecker(delegated));
        let client = Arc::new(WebhookClient::new(Arc::new(OutboundClients::new(services, None))));
        let mutating = Arc::new(MutatingPolicies::new(Arc::clone(&environment), Arc::clone(&access_checker)));
        let validating = Arc::new(ValidatingPolicies::new(Arc::clone(&environment), Arc::clone(&access_checker)));
        let webhooks = Arc::new(Webhooks::new(environment, access_checker, client));
        let steps: [Arc<dyn Admission>; 3] =
            [Arc::clone(&mutating) as _, Arc::clone(&validating) as _, Arc::clone(&webhooks) as _];
        Self { control_plane, configurations, mutating, validating, webhooks, steps }
    }

    /// Follows the policies and webhooks of the control plane until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.configurations.follow(&self.control_plane)).await;
    }

    /// Creates the admission of a request for the route `found`. `details` names the object and the subresource.
    pub(crate) fn request<'r>(
        &'r self,
        context: &'r RequestContext,
        found: &ResourceRoute,
        details: OperationDetails<'_>,
    ) -> AdmissionRequest<'r> {
        let OperationDetails { operation, name, subresource, options, dry_run } = details;
        let ctx = strategy::RequestContext {
            user: context.user.clone(),
            now: jiff::Timestamp::now(),
            dry_run,
            subresource: subresource.to_owned(),
            namespace: context.namespace().to_owned(),
            record: context.audit.clone(),
        };
        let resource = resource::describe(found.group.api.name, found.resource.definition(), connect_kind(found));
        let namespace = NamespaceCache::default();
        AdmissionRequest { chain: self, ctx, resource, operation, name: name.to_owned(), options, namespace }
    }

    /// Admits a request that connects to an object, for all methods. Returns the warnings.
    pub(crate) async fn connect(
        &self,
        context: &RequestContext,
        found: &ResourceRoute,
        connect: Connect,
    ) -> (Result<(), ApiError>, Vec<String>) {
        let subresource = found.resource.definition().subresource;
        let (name, options) = (context.name(), Value::Null);
        let details = OperationDetails { operation: Operation::Connect, name, subresource, options, dry_run: false };
        let (request, mut warnings) = (self.request(context, found, details), Vec::new());
        let mut object = connect.options(found.group.api.name, context.attributes.subpath());
        let admitted = request.admit(object.as_mut(), &mut warnings).await;
        (admitted, warnings)
    }
}

/// Kind of the options of a subresource for connections, if it has options.
fn connect_kind(found: &ResourceRoute) -> Option<&'static str> {
    match found.resource.definition().connect? {
        Connect::Options(kind) => Some(kind),
        Connect::NoOptions => None,
    }
}

/// Details of an operation in addition to its path and method.
pub(crate) struct OperationDetails<'r> {
    pub(crate) operation: Operation,
    /// Empty for collections, and for new objects whose name is generated.
    pub(crate) name: &'r str,
    pub(crate) subresource: &'r str,
    /// Options of the request, such as CreateOptions, as JSON.
    pub(crate) options: Value,
    pub(crate) dry_run: bool,
}

/// A request under admission.
pub(crate) struct AdmissionRequest<'r> {
    chain: &'r AdmissionChain,
    ctx: strategy::RequestContext,
    resource: ResourceRef,
    operation: Operation,
    name: String,
    options: Value,
    /// Shared by both phases.
    namespace: NamespaceCache,
}

/// Phases of admission in which a policy or webhook has rules for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ApplicablePhases {
    pub(crate) mutating: bool,
    pub(crate) validating: bool,
}

impl ApplicablePhases {
    pub(crate) fn any(self) -> bool {
        self.mutating || self.validating
    }
}

impl AdmissionRequest<'_> {
    fn attributes<'a>(&'a self, old: Option<&'a Value>) -> Attributes<'a> {
        let attributes = Attributes::new(&self.ctx, &self.resource, self.operation, &self.name, &self.options);
        Attributes { old, namespace: self.namespace.clone(), ..attributes }
    }

    /// The phases with rules for this request. Fails if the policies and webhooks have not been listed yet.
    pub(crate) async fn applicable_phases(&self) -> Result<ApplicablePhases, ApiError> {
        if !self.chain.configurations.wait_for_sync(SYNC_TIMEOUT).await {
            let gvr = &self.resource.gvr;
            tracing::warn!(resource = &*gvr.resource, "policies and webhooks in {GROUP} have not been listed yet");
            let reason = "not yet ready to handle request";
            return Err(ApiError::forbidden(&gvr.group, &gvr.resource, &self.name, reason));
        }
        let (chain, attributes) = (self.chain, self.attributes(None));
        Ok(ApplicablePhases {
            mutating: chain.mutating.has_rules_for(&attributes) || chain.webhooks.has_mutating_rules_for(&attributes),
            validating: chain.validating.has_rules_for(&attributes)
                || chain.webhooks.has_validating_rules_for(&attributes),
        })
    }

    pub(crate) async fn mutate(
        &self,
        object: Option<&mut Value>,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        admission::mutate(&self.chain.steps, &self.attributes(old), object, warnings).await
    }

    pub(crate) async fn validate(
        &self,
        object: Option<&Value>,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        admission::validate(&self.chain.steps, &self.attributes(old), object, warnings).await
    }

    /// Both phases, for objects that are not stored.
    async fn admit(&self, mut object: Option<&mut Value>, warnings: &mut Vec<String>) -> Result<(), ApiError> {
        if !self.applicable_phases().await?.any() {
            return Ok(());
        }
        self.mutate(object.as_deref_mut(), None, warnings).await?;
        self.validate(object.as_deref(), None, warnings).await
    }
}

impl Connect {
    /// The object under admission: the options of the connection. `below` is the raw path below the object.
    fn options(self, group: &str, below: &str) -> Option<Value> {
        let Self::Options(kind) = self else { return None };
        let mut options =
            json!({"kind": kind, "apiVersion": format!("{group}/{}", crate::resource::registry::VERSION)});
        if !below.is_empty() {
            options["path"] = percent_encoding::percent_decode_str(below).decode_utf8_lossy().into();
        }
        Some(options)
    }
}

/// Adds warnings of admission to a response; an error becomes a response.
pub(crate) fn with_warnings(
    response: Result<Response<Body>, ApiError>,
    texts: &[String],
) -> Result<Response<Body>, ApiError> {
    if texts.is_empty() {
        return response;
    }
    let mut response = response.unwrap_or_else(StatusResponse::into_response);
    warnings::append(response.headers_mut(), texts);
    Ok(response)
}
