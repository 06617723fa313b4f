//! Certificates of agents (Karmada's `agentcsrapproving`): approves what agents ask for, when whoever asks may have it. Writes
//! the approval of CertificateSigningRequests and nothing else of them; the control plane's signer does the rest.

use std::sync::Arc;

use serde_json::Value;

use super::context::Context;
use super::objects::{Resource, Target};
use super::queue::{Outcome, Queue};
use super::world::Change;
use crate::Error;
use crate::plan::certificates::{self as plan, Permission};
use crate::plan::object;

pub struct Certificates {
    context: Arc<Context>,
    pub requests: Queue<String>,
    reviews: Resource,
}

impl Certificates {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        let reviews =
            Resource::builtin("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", false);
        Arc::new(Certificates { context, requests: Queue::new("certificates"), reviews })
    }

    pub fn on_change(&self, change: &Change) {
        if change.resource.gvr == self.context.kinds.certificate_signing_request.gvr
            && change.current().is_some_and(plan::is_open)
        {
            self.requests.add(object::name(change.object()).to_owned());
        }
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        let requests = self.context.keys(&self.context.kinds.certificate_signing_request).await?;
        requests.into_iter().for_each(|(_, name)| self.requests.add(name));
        Ok(())
    }

    pub async fn reconcile(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        let resource = &self.context.kinds.certificate_signing_request;
        let Some(request) = self.context.get(resource, "", &name).await? else { return Ok(Outcome::Done) };
        if object::is_terminating(&request) || !plan::is_open(&request) {
            return Ok(Outcome::Done);
        }
        let permissions = match plan::permissions(&request) {
            Ok(permissions) => permissions,
            // It stays so: what is asked for cannot be changed.
            Err(error) => {
                tracing::warn!(%error, "certificate signing request");
                return Ok(Outcome::Done);
            }
        };
        for permission in &permissions {
            if self.is_allowed(&request, *permission).await? {
                return self.approve(&request, *permission).await;
            }
        }
        if !permissions.is_empty() {
            tracing::warn!(name, "an agent's certificate is asked for by somebody who may not have it");
        }
        Ok(Outcome::Done)
    }

    async fn is_allowed(&self, request: &Value, permission: Permission) -> Result<bool, Error> {
        let review = plan::review(request, permission);
        let answer = self.context.objects.create(&self.reviews, "", &review).await?;
        Ok(object::at(&answer, &["status", "allowed"]).and_then(Value::as_bool).unwrap_or_default())
    }

    async fn approve(&self, request: &Value, permission: Permission) -> Result<Outcome, Error> {
        let resource = &self.context.kinds.certificate_signing_request;
        let target = Target { subresource: "approval", ..Target::new(resource, "", object::name(request)) };
        let approved = plan::approved(request, permission, &self.context.now().to_string());
        self.context.objects.replace(target, &approved).await?;
        tracing::info!(name = object::name(request), permission.message, "an agent's certificate is approved");
        Ok(Outcome::Done)
    }
}
