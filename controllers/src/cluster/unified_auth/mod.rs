//! Unified auth controller: creates RBAC objects in every member that let the control plane impersonate users with
//! proxy access.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::annotation::{IMPERSONATES, IMPERSONATES_ALL_ATTRIBUTES, MIGRATED_FROM, RIGHTS};
use crowsnest_api::constants::condition::APPLIED;
use crowsnest_api::constants::event;
use crowsnest_api::names::work_name;
use crowsnest_api::work::Work;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::Change;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::Resource;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::shared::works::{member_of, write_work};
use crowsnest_plan::propagation::binding::controller_reference;
use crowsnest_plan::work::construct::{self, WorkOptions};
use crowsnest_plan::{access, conditions};

pub struct UnifiedAuthController {
    context: Arc<Context>,
    /// Clusters in which the control plane has restricted permissions.
    restricted: Mutex<HashSet<ClusterName>>,
}

/// Delay of a reconciliation, so that roles that are created together are processed once.
const BATCH_DELAY: Duration = Duration::from_millis(100);

impl UnifiedAuthController {
    fn on_cluster(&self, change: &Change) -> Requests<ClusterName> {
        let name = unstructured::name(change.object());
        let is_restricted = unstructured::annotation(change.object(), RIGHTS).is_some();
        let differs = change.is_generation_changed() || is_restricted != self.restricted.lock().contains(name);
        Requests::from(change.cluster_name().filter(|_| differs)).after(BATCH_DELAY)
    }

    /// Cluster of a Work that contains the role for UID and extra fields, which Karmada does not have. The Work's
    /// status shows if the role exists in the member.
    fn on_work(&self, change: &Change) -> Requests<ClusterName> {
        let is_role = self.context.config.impersonate_uid_and_extra
            && unstructured::name(change.object()).starts_with(access::FULL_IMPERSONATOR);
        Requests::from(member_of(unstructured::namespace(change.object())).filter(|_| is_role)).after(BATCH_DELAY)
    }
}

impl Controller for UnifiedAuthController {
    type Key = ClusterName;
    const NAME: &'static str = "unified-auth-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["unifiedAuth"]);

    fn new(setup: &Setup) -> Self {
        UnifiedAuthController { context: setup.context(), restricted: Mutex::default() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        let roles = Source::control_plane([&kinds.cluster_role, &kinds.cluster_role_binding]);
        vec![
            roles.map(|_, change| Requests::all_if(!change.initial).after(BATCH_DELAY)),
            Source::clusters(kinds).map(Self::on_cluster),
            Source::control_plane([&kinds.work]).map(Self::on_work),
        ]
    }

    async fn keys(&self) -> Result<Vec<ClusterName>, Error> {
        self.context.active_cluster_names().await
    }

    async fn reconcile(self: Arc<Self>, name: ClusterName) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(cluster) = context.get_full(&context.kinds.cluster, "", name.as_str()).await? else {
            return Ok(Outcome::Done);
        };
        let typed: Cluster = decode(&cluster)?;
        // With restricted permissions, the control plane cannot write roles in the member.
        let is_restricted = unstructured::annotation(&cluster, RIGHTS).is_some();
        match is_restricted {
            true => self.restricted.lock().insert(name.clone()),
            false => self.restricted.lock().remove(&name),
        };
        let is_managed = !unstructured::is_terminating(&cluster) && !is_restricted;
        let Some(secret) = typed.spec.impersonator_secret_ref.filter(|_| is_managed) else { return Ok(Outcome::Done) };
        let namespace = crowsnest_api::names::execution_namespace(&name);
        if !context.exists(&context.kinds.namespace, "", &namespace).await? {
            return Err(Error::Waiting(format!("namespace {namespace} does not exist")));
        }
        match self.write_impersonator(&cluster, &secret.namespace).await {
            Ok(false) => {}
            Ok(true) => {
                let text = "Sync impersonation config succeed.";
                context.events.record(&cluster, Severity::Normal, event::SYNC_IMPERSONATION_CONFIG_SUCCEED, text);
            }
            Err(error) => {
                if error.needs_event() {
                    let failed = event::SYNC_IMPERSONATION_CONFIG_FAILED;
                    context.events.record(&cluster, Severity::Warning, failed, error.to_string());
                }
                return Err(error);
            }
        }
        // A cluster migrated from Karmada in place keeps Karmada's permissions.
        let is_full =
            context.config.impersonate_uid_and_extra && unstructured::annotation(&cluster, MIGRATED_FROM).is_none();
        if is_full {
            let (role, binding) = access::full_impersonation(&secret.namespace);
            for manifest in [role, binding] {
                self.write_manifest(&cluster, manifest).await?;
            }
        }
        self.annotate(&cluster, is_full && self.is_full_impersonator_applied(&namespace).await?).await?;
        if !is_full {
            for work in self.full_impersonator_works() {
                if context.exists(&context.kinds.work, &namespace, &work).await? {
                    context.delete(&context.kinds.work, &namespace, &work).await?;
                }
            }
        }
        Ok(Outcome::Done)
    }
}

impl UnifiedAuthController {
    /// Writes the impersonation role and binding of a member. Returns true if anything changed.
    async fn write_impersonator(&self, cluster: &Value, namespace: &str) -> Result<bool, Error> {
        let roles: Vec<ClusterRole> = self.list(&self.context.kinds.cluster_role).await?;
        let bindings: Vec<ClusterRoleBinding> = self.list(&self.context.kinds.cluster_role_binding).await?;
        let (role, binding) = access::plan(unstructured::name(cluster), &roles, &bindings, namespace);
        let role = self.write_manifest(cluster, role).await?;
        Ok(self.write_manifest(cluster, binding).await? || role)
    }

    /// Writes the Work of a manifest. Returns true if it changed.
    async fn write_manifest(&self, cluster: &Value, manifest: Value) -> Result<bool, Error> {
        let name = unstructured::name(cluster);
        let mut desired =
            construct::wrap(name, manifest, Default::default(), Default::default(), WorkOptions::default());
        desired.owner = Some(controller_reference(cluster));
        write_work(&self.context, &desired).await
    }

    /// Names of the Works that contain the role for UID and extra fields, and its binding.
    fn full_impersonator_works(&self) -> [String; 2] {
        ["ClusterRole", "ClusterRoleBinding"].map(|kind| work_name(kind, access::FULL_IMPERSONATOR, ""))
    }

    /// True if the role for UID and extra fields and its binding are applied in the member.
    async fn is_full_impersonator_applied(&self, namespace: &str) -> Result<bool, Error> {
        for name in self.full_impersonator_works() {
            let Some(work) = self.context.get_redacted(&self.context.kinds.work, namespace, &name).await? else {
                return Ok(false);
            };
            let work: Work = decode(work.view())?;
            if !conditions::is_true(&work.status.conditions, APPLIED) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Annotates the Cluster if UID and extra fields can be impersonated, once the role is applied.
    async fn annotate(&self, cluster: &Value, is_full: bool) -> Result<(), Error> {
        let is_annotated = unstructured::annotation(cluster, IMPERSONATES).is_some();
        if is_annotated == is_full {
            return Ok(());
        }
        let value = is_full.then_some(IMPERSONATES_ALL_ATTRIBUTES);
        let patch = json!({"metadata": {"annotations": {IMPERSONATES: value}}});
        self.context.merge(&self.context.kinds.cluster, cluster, patch).await.map(drop)
    }

    async fn list<T: DeserializeOwned>(&self, resource: &Resource) -> Result<Vec<T>, Error> {
        self.context.list(resource, None).await?.iter().map(|object| decode(object.view())).collect()
    }
}
