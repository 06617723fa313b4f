//! Agent CSR approving controller: approves CertificateSigningRequests of agents whose requester has permission. It
//! writes only the approval; the control plane's signer issues the certificate. The agent of a new cluster is granted
//! its RBAC permissions first (`crowsnest_plan::agents`). For an existing cluster, only a request that its agent itself
//! has sent is approved; a request of another user, such as that of a bootstrap token, requires an administrator.

use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use crate::Error;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::Target;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crowsnest_plan::agents;
use crowsnest_plan::certificates::{self as plan, Permission};

pub struct AgentCsrApprovingController {
    context: Arc<Context>,
}

impl Controller for AgentCsrApprovingController {
    type Key = String;
    const NAME: &'static str = "agent-csr-approving-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["agentcsrapproving"]);

    fn new(setup: &Setup) -> Self {
        AgentCsrApprovingController { context: setup.context() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::control_plane([&kinds.certificate_signing_request])
                .map(|_, change| Requests::one_if(change.current().is_some_and(plan::is_pending), || change.name())),
        ]
    }

    async fn keys(&self) -> Result<Vec<String>, Error> {
        self.context.names(&self.context.kinds.certificate_signing_request).await
    }

    async fn reconcile(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        let resource = &self.context.kinds.certificate_signing_request;
        let Some(request) = self.context.get_full(resource, "", &name).await? else { return Ok(Outcome::Done) };
        if unstructured::is_terminating(&request) || !plan::is_pending(&request) {
            return Ok(Outcome::Done);
        }
        let permissions = match plan::permissions(&request) {
            Ok(permissions) => permissions,
            // The result is final, because the request is immutable.
            Err(error) => {
                tracing::warn!(%error, "invalid certificate signing request");
                return Ok(Outcome::Done);
            }
        };
        for permission in &permissions {
            if !self.is_allowed(&request, *permission).await? {
                continue;
            }
            match plan::find_joining_cluster(&request) {
                Ok(Some(cluster)) if self.context.cluster(cluster.as_str()).await?.is_some() => {
                    tracing::warn!(name, %cluster, "an agent's certificate for an existing cluster requires approval by an administrator");
                    return Ok(Outcome::Done);
                }
                Ok(Some(cluster)) => {
                    if !self.create_rbac_objects(&cluster, unstructured::uid(&request)).await? {
                        tracing::warn!(name, %cluster, "a certificate was already approved for a cluster of this name; approval by an administrator is required");
                        return Ok(Outcome::Done);
                    }
                }
                Ok(None) | Err(_) => {}
            }
            return self.approve(&request, *permission).await;
        }
        if !permissions.is_empty() {
            tracing::warn!(name, "the requester of an agent's certificate has no permission");
        }
        Ok(Outcome::Done)
    }
}

impl AgentCsrApprovingController {
    /// Creates an agent's RBAC objects; existing ones are not changed. Returns false if they were created for another
    /// request: with two certificates for one name, each could act for the cluster that the other registers.
    async fn create_rbac_objects(&self, cluster: &ClusterName, request: &str) -> Result<bool, Error> {
        let mut objects = agents::rbac_objects(cluster);
        agents::set_granted_for(&mut objects[0], request);
        let kinds = &self.context.kinds;
        let resources = [&kinds.cluster_role, &kinds.cluster_role_binding, &kinds.role, &kinds.role_binding];
        for (index, (resource, object)) in resources.into_iter().zip(&objects).enumerate() {
            let (namespace, name) = (unstructured::namespace(object), unstructured::name(object));
            match self.context.objects.get(Target::new(resource, namespace, name)).await? {
                None => drop(self.context.objects.create(resource, namespace, object).await?),
                Some(role) if index == 0 && !agents::is_granted_for(&role, request) => return Ok(false),
                Some(_) => {}
            }
        }
        Ok(true)
    }

    /// True if the requester has a permission, by a SubjectAccessReview.
    async fn is_allowed(&self, request: &Value, permission: Permission) -> Result<bool, Error> {
        let review = plan::access_review(request, permission);
        let review = self.context.objects.create(&self.context.kinds.subject_access_review, "", &review).await?;
        Ok(unstructured::at(&review, &["status", "allowed"]).and_then(Value::as_bool).unwrap_or_default())
    }

    async fn approve(&self, request: &Value, permission: Permission) -> Result<Outcome, Error> {
        let resource = &self.context.kinds.certificate_signing_request;
        let target = Target { subresource: Some("approval"), ..Target::new(resource, "", unstructured::name(request)) };
        let approved = plan::approve(request, permission, &self.context.now().to_string());
        self.context.objects.replace(target, &approved).await?;
        tracing::info!(name = unstructured::name(request), permission.message, "approved an agent's certificate");
        Ok(Outcome::Done)
    }
}
