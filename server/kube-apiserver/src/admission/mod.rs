//! The admission chain: what may still change or refuse a write after authorisation.
//!
//! [`plugins`] is the chain in its order; `registry/` runs every step's `mutate` and then `guard`, and, on the finished
//! object, every step's `validate`.

mod certificates;
#[cfg(test)]
mod certificates_tests;
mod expression;
mod ingress;
pub mod limits;
pub mod policy;
pub mod priority;
pub mod quota;
mod reinvocation;
mod runtime;
mod surroundings;
mod taints;
pub mod tolerations;
pub mod webhook;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use crate::authz::Authorizer;
use crate::cel::authorizer::Judge;
use crate::outbound::Outbound;
use crate::registry::Registry;
use crate::registry::resource::{ResourceRef, Subresource};
use crate::registry::strategy::RequestContext;
use crate::status::ApiResult;

pub use crate::outbound::Target;
pub use reinvocation::Reinvocation;
pub use webhook::client::WebhookClient;
pub use webhook::config::webhook_client_config;

/// `CREATE`, `UPDATE`, `DELETE`, `CONNECT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// One write under admission.
#[derive(Debug)]
pub struct Attributes<'a> {
    pub ctx: &'a RequestContext,
    pub resource: &'a ResourceRef,
    pub operation: Operation,
    pub name: &'a str,
    /// Absent on create.
    pub old: Option<&'a Value>,
    /// `CreateOptions`, `UpdateOptions`, `PatchOptions`, `DeleteOptions` as the client sent them.
    pub options: &'a Value,
    /// How far mutating admission has come.
    pub reinvocation: Reinvocation,
}

impl<'a> Attributes<'a> {
    pub fn new(
        ctx: &'a RequestContext,
        resource: &'a ResourceRef,
        operation: Operation,
        name: &'a str,
        options: &'a Value,
    ) -> Self {
        Self { ctx, resource, operation, name, old: None, options, reinvocation: Reinvocation::default() }
    }

    /// The subresource written to, where what is written to it is of another kind than the resource.
    pub fn of_own_kind(&self) -> Option<&Subresource> {
        let own = |sub: &&Subresource| sub.name == self.ctx.subresource && sub.kind != self.resource.kind;
        self.resource.subresources.iter().find(own)
    }

    /// A write of the objects themselves, not of a subresource.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.resource.gvr.group == group && self.resource.gvr.resource == resource && self.ctx.subresource.is_empty()
    }
}

/// A step of the chain. `object` is absent on delete. Warnings go to the answer's `Warning` headers.
#[async_trait]
pub trait Admission: Send + Sync {
    /// May change the object.
    async fn mutate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&mut Value>,
        _warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        Ok(())
    }

    /// May only refuse, after all have changed the object and before it is prepared and validated: what the storage of a kind asks.
    async fn guard(&self, _attributes: &Attributes<'_>, _object: &Value) -> ApiResult<()> {
        Ok(())
    }

    /// May only refuse.
    async fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Value>,
        _warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        Ok(())
    }
}

/// A plugin that a server can do without, by kube-apiserver's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    LimitRanger,
    TaintNodesByCondition,
    Priority,
    DefaultTolerationSeconds,
    RuntimeClass,
    CertificateApproval,
    CertificateSigning,
    CertificateSubjectRestriction,
    DefaultIngressClass,
    MutatingAdmissionPolicy,
    ValidatingAdmissionPolicy,
    ResourceQuota,
}

impl Plugin {
    const ALL: [Plugin; 12] = [
        Plugin::LimitRanger,
        Plugin::TaintNodesByCondition,
        Plugin::Priority,
        Plugin::DefaultTolerationSeconds,
        Plugin::RuntimeClass,
        Plugin::CertificateApproval,
        Plugin::CertificateSigning,
        Plugin::CertificateSubjectRestriction,
        Plugin::DefaultIngressClass,
        Plugin::MutatingAdmissionPolicy,
        Plugin::ValidatingAdmissionPolicy,
        Plugin::ResourceQuota,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Plugin::LimitRanger => "LimitRanger",
            Plugin::TaintNodesByCondition => "TaintNodesByCondition",
            Plugin::Priority => "Priority",
            Plugin::DefaultTolerationSeconds => "DefaultTolerationSeconds",
            Plugin::RuntimeClass => "RuntimeClass",
            Plugin::CertificateApproval => "CertificateApproval",
            Plugin::CertificateSigning => "CertificateSigning",
            Plugin::CertificateSubjectRestriction => "CertificateSubjectRestriction",
            Plugin::DefaultIngressClass => "DefaultIngressClass",
            Plugin::MutatingAdmissionPolicy => "MutatingAdmissionPolicy",
            Plugin::ValidatingAdmissionPolicy => "ValidatingAdmissionPolicy",
            Plugin::ResourceQuota => "ResourceQuota",
        }
    }
}

impl std::str::FromStr for Plugin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|plugin| plugin.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("admission plugin {text:?} is unknown or can't be left out; these can be: {names}")
        })
    }
}

/// The later part of every chain, in kube-apiserver's order: limits, taints, priority, tolerations, classes, certificates, policies, webhooks; quota
/// last,
/// because what it charges is final. Policies that validate do so before webhooks do.
pub fn plugins(
    registry: &Arc<Registry>,
    authorizer: &Arc<Authorizer>,
    outbound: &Arc<Outbound>,
    disabled: &[Plugin],
) -> Vec<Arc<dyn Admission>> {
    let judge: Arc<dyn Judge> = authorizer.clone();
    let client = Arc::new(WebhookClient::new(outbound.clone()));
    let webhooks = webhook::Webhooks::new(registry, judge.clone(), client);
    let chain: [(Option<Plugin>, Arc<dyn Admission>); 13] = [
        (Some(Plugin::LimitRanger), Arc::new(limits::LimitRanger::new(registry))),
        (Some(Plugin::TaintNodesByCondition), Arc::new(taints::TaintNodesByCondition)),
        (Some(Plugin::Priority), Arc::new(priority::Priority::new(registry))),
        (Some(Plugin::DefaultTolerationSeconds), Arc::new(tolerations::DefaultTolerationSeconds)),
        (Some(Plugin::RuntimeClass), Arc::new(runtime::RuntimeClass::new(registry))),
        (Some(Plugin::CertificateApproval), Arc::new(certificates::CertificateApproval(authorizer.clone()))),
        (Some(Plugin::CertificateSigning), Arc::new(certificates::CertificateSigning(authorizer.clone()))),
        (Some(Plugin::CertificateSubjectRestriction), Arc::new(certificates::CertificateSubjectRestriction)),
        (Some(Plugin::DefaultIngressClass), Arc::new(ingress::DefaultIngressClass::new(registry))),
        (Some(Plugin::MutatingAdmissionPolicy), Arc::new(policy::MutatingPolicies::new(registry, judge.clone()))),
        (Some(Plugin::ValidatingAdmissionPolicy), Arc::new(policy::ValidatingPolicies::new(registry, judge))),
        (None, Arc::new(webhooks)),
        (Some(Plugin::ResourceQuota), Arc::new(quota::ResourceQuota::new(registry))),
    ];
    let kept = chain.into_iter().filter(|(plugin, _)| plugin.is_none_or(|plugin| !disabled.contains(&plugin)));
    kept.map(|(_, step)| step).collect()
}
