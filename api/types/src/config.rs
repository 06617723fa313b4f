//! config.karmada.io/v1alpha1: how kinds are interpreted, by Lua scripts or by webhooks, and the messages exchanged
//! with interpreter webhooks. Written by users; read by the resource interpreter.

use crate::object::{is_default, kind, shape, word};
use crate::work::{AggregatedStatusItem, Component, ReplicaRequirements};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde::{Deserialize, Serialize};

/// The API group of this module.
pub const GROUP: &str = "config.karmada.io";

kind! {
    /// Lua scripts that interpret one kind.
    ResourceInterpreterCustomization, Cluster, "config.karmada.io", "v1alpha1", "resourceinterpretercustomizations" {
        spec: ResourceInterpreterCustomizationSpec,
    }
}

kind! {
    /// Webhooks that interpret kinds.
    ResourceInterpreterWebhookConfiguration, Cluster, "config.karmada.io", "v1alpha1",
    "resourceinterpreterwebhookconfigurations" {
        webhooks: Vec<ResourceInterpreterWebhook>,
    }
}

shape! {
    /// The kind and its scripts.
    pub struct ResourceInterpreterCustomizationSpec {
        pub target: CustomizationTarget,
        pub customizations: CustomizationRules,
    }

    /// The kind interpreted.
    pub struct CustomizationTarget {
        pub api_version: String,
        pub kind: String,
    }

    /// The scripts by what they do; those absent are left to the other interpreters.
    pub struct CustomizationRules {
        /// Keeps values a member set: `Retain(desiredObj, observedObj)`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub retention: Option<LuaRule>,
        /// Replicas and what each needs: `GetReplicas(obj)`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_resource: Option<LuaRule>,
        /// Replicas and needs of several pod templates: `GetComponents(obj)`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub component_resource: Option<LuaRule>,
        /// Sets the number of replicas: `ReviseReplica(obj, replica)`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_revision: Option<LuaRule>,
        /// Picks the status to report: `ReflectStatus(obj)`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub status_reflection: Option<LuaRule>,
        /// Merges the members' statuses: `AggregateStatus(desiredObj, statusItems)`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub status_aggregation: Option<LuaRule>,
        /// Tells healthy from unhealthy: `InterpretHealth(obj)`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub health_interpretation: Option<LuaRule>,
        /// Lists the objects referred to: `GetDependencies(obj)`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub dependency_interpretation: Option<LuaRule>,
    }

    /// A Lua script.
    pub struct LuaRule {
        pub lua_script: String,
    }

    /// A webhook and what it interprets.
    pub struct ResourceInterpreterWebhook {
        /// A fully qualified name.
        pub name: String,
        /// How it is reached.
        pub client_config: WebhookClientConfig,
        /// What it interprets.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub rules: Vec<RuleWithOperations>,
        /// How long, in seconds, an answer may take.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub timeout_seconds: Option<i32>,
        /// The versions of the exchanged messages it understands, best first.
        pub interpreter_context_versions: Vec<String>,
    }

    /// Operations on kinds.
    pub struct RuleWithOperations {
        pub operations: Vec<InterpreterOperation>,
        pub api_groups: Vec<String>,
        pub api_versions: Vec<String>,
        pub kinds: Vec<String>,
    }

    /// What goes to and comes from an interpreter webhook. Never stored.
    pub struct ResourceInterpreterContext {
        pub api_version: String,
        pub kind: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub request: Option<ResourceInterpreterRequest>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub response: Option<ResourceInterpreterResponse>,
    }

    /// The question to an interpreter webhook.
    pub struct ResourceInterpreterRequest {
        pub uid: String,
        pub kind: GroupVersionKind,
        pub name: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        pub operation: InterpreterOperation,
        /// The object asked about.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub object: Option<RawExtension>,
        /// The member's object, for `Retain`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub observed_object: Option<RawExtension>,
        /// The wanted number, for `ReviseReplica`.
        #[serde(skip_serializing_if = "Option::is_none", rename = "replicas")]
        pub desired_replicas: Option<i32>,
        /// The members' statuses, for `AggregateStatus`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub aggregated_status: Vec<AggregatedStatusItem>,
    }

    /// The answer of an interpreter webhook.
    pub struct ResourceInterpreterResponse {
        pub uid: String,
        pub successful: bool,
        /// Why it was not.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub status: Option<RequestStatus>,
        /// The change of the object.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        pub patch: Option<ByteString>,
        /// `JSONPatch`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub patch_type: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_requirements: Option<ReplicaRequirements>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replicas: Option<i32>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub components: Vec<Component>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub dependencies: Vec<DependentObjectReference>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub raw_status: Option<RawExtension>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub healthy: Option<bool>,
    }

    /// Why a webhook could not answer.
    pub struct RequestStatus {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub message: String,
        #[serde(skip_serializing_if = "is_default")]
        pub code: i32,
    }

    /// An object another one needs, by name or by labels.
    pub struct DependentObjectReference {
        pub api_version: String,
        pub kind: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub label_selector: Option<LabelSelector>,
    }
}

impl CustomizationRules {
    /// The scripts by the operation they serve. An empty script counts as none.
    pub fn scripts(&self) -> [(InterpreterOperation, Option<&str>); 8] {
        use InterpreterOperation as Operation;
        fn script(rule: &Option<LuaRule>) -> Option<&str> {
            rule.as_ref().map(|rule| rule.lua_script.as_str()).filter(|script| !script.is_empty())
        }
        [
            (Operation::Retain, script(&self.retention)),
            (Operation::InterpretReplica, script(&self.replica_resource)),
            (Operation::InterpretComponent, script(&self.component_resource)),
            (Operation::ReviseReplica, script(&self.replica_revision)),
            (Operation::InterpretStatus, script(&self.status_reflection)),
            (Operation::AggregateStatus, script(&self.status_aggregation)),
            (Operation::InterpretHealth, script(&self.health_interpretation)),
            (Operation::InterpretDependency, script(&self.dependency_interpretation)),
        ]
    }
}

/// A kind as written in exchanged messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GroupVersionKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

word! { open
    /// What an interpreter is asked to do.
    InterpreterOperation {
        All = "*",
        InterpretReplica = "InterpretReplica",
        InterpretComponent = "InterpretComponent",
        ReviseReplica = "ReviseReplica",
        InterpretStatus = "InterpretStatus",
        Prune = "Prune",
        Retain = "Retain",
        AggregateStatus = "AggregateStatus",
        InterpretHealth = "InterpretHealth",
        InterpretDependency = "InterpretDependency",
    }
}
