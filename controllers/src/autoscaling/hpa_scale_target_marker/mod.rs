//! HPA scale target marker: labels templates that a propagated HorizontalPodAutoscaler scales, so that members keep
//! their replicas. Disabled by default; writes that label only. The interpreter reads it when a Work is applied.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crowsnest_apimachinery::names::{ClusterName, Gvr, NamespacedName};
use crowsnest_apimachinery::unstructured;
use parking_lot::Mutex;

use crate::Error;
use crate::cache::Change;
use crate::propagation::detector::is_template_resource;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::Resource;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Trigger, Watch, WellKnownKinds};
use crowsnest_plan::retaining::{Autoscaler, ScaleTarget, affected_targets, is_retained, label_patch};

pub struct ScaleTargetMarker {
    context: Arc<Context>,
    targets: Trigger<ScaleTarget>,
    /// Scale targets by autoscaler, so that the previous target is known after a change.
    autoscalers: Mutex<BTreeMap<NamespacedName, Autoscaler>>,
}

/// True for any version of the resource, since all versions refer to the same objects.
fn is_autoscaler(gvr: &Gvr) -> bool {
    &*gvr.group == "autoscaling" && &*gvr.resource == "horizontalpodautoscalers"
}

impl ScaleTargetMarker {
    fn on_change(&self, change: &Change) -> Requests<ScaleTarget> {
        if is_autoscaler(&change.resource.gvr) {
            return self
                .update_autoscaler(change.key(), change.current().map(Autoscaler::from_json))
                .into_iter()
                .collect();
        }
        let Some(template) = change.current().filter(|template| !is_retained(template)) else {
            return Requests::none();
        };
        // The template was created after its autoscaler, or the label was removed.
        self.find_target(unstructured::namespace(template), |target| target.matches(template)).into()
    }

    /// Records an autoscaler. Returns the targets to reconcile.
    fn update_autoscaler(&self, key: NamespacedName, new: Option<Autoscaler>) -> Vec<ScaleTarget> {
        let mut autoscalers = self.autoscalers.lock();
        let old = match &new {
            Some(new) => autoscalers.insert(key, new.clone()),
            None => autoscalers.remove(&key),
        };
        drop(autoscalers);
        affected_targets(old.as_ref(), new.as_ref()).into_iter().collect()
    }

    /// A scale target of a propagated autoscaler in the namespace that satisfies the predicate.
    fn find_target(&self, namespace: &str, predicate: impl Fn(&ScaleTarget) -> bool) -> Option<ScaleTarget> {
        let autoscalers = self.autoscalers.lock();
        let mut in_namespace = autoscalers
            .range(NamespacedName::new(namespace, "")..)
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, autoscaler)| autoscaler);
        let found = in_namespace.find(|autoscaler| autoscaler.is_propagated && predicate(&autoscaler.target));
        found.map(|autoscaler| autoscaler.target.clone())
    }

    /// The collected resource of a target's kind.
    fn find_resource(&self, target: &ScaleTarget) -> Option<Arc<Resource>> {
        let resources = self.context.cache.resources(&self.context.control_plane);
        let of_kind = |resource: &Arc<Resource>| {
            resource.namespaced && resource.kind == target.kind && *resource.gvr.group == *target.group
        };
        resources.into_iter().find(of_kind)
    }
}

impl Controller for ScaleTargetMarker {
    type Key = ScaleTarget;
    const NAME: &'static str = "hpa-scale-target-marker";
    const SWITCH: Switch = Switch::OffByDefault(&["hpaScaleTargetMarker"]);

    fn new(setup: &Setup) -> Self {
        ScaleTargetMarker { context: setup.context(), targets: setup.trigger::<Self>(), autoscalers: Mutex::default() }
    }

    fn watches(_kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![Source::AllOfControlPlane.map(Self::on_change)]
    }

    async fn keys(&self) -> Result<Vec<ScaleTarget>, Error> {
        let autoscalers = self.autoscalers.lock();
        let propagated = autoscalers.values().filter(|autoscaler| autoscaler.is_propagated);
        Ok(propagated.map(|autoscaler| autoscaler.target.clone()).collect())
    }

    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        if cluster.is_control_plane() && is_autoscaler(&resource.gvr) {
            let names: Vec<NamespacedName> = self.autoscalers.lock().keys().cloned().collect();
            let deleted = names.into_iter().filter(|key| !keys.contains(key));
            deleted.flat_map(|key| self.update_autoscaler(key, None)).for_each(|target| self.targets.add(target));
        }
    }

    async fn reconcile(self: Arc<Self>, target: ScaleTarget) -> Result<Outcome, Error> {
        let context = &self.context;
        let is_scaled = self.find_target(&target.namespace, |candidate| *candidate == target).is_some();
        let Some(resource) = self.find_resource(&target).filter(|resource| is_template_resource(&resource.gvr)) else {
            // Once the kind is served, its objects are dispatched, and the target is enqueued again.
            return Ok(Outcome::Done);
        };
        if !context.cache.is_synced(&context.control_plane, &resource.gvr) {
            return Err(Error::Waiting(format!("{} are not listed yet", resource.gvr.resource)));
        }
        let Some(template) = context.get_redacted(&resource, &target.namespace, &target.name).await? else {
            return Ok(Outcome::Done);
        };
        let Some(patch) = label_patch(template.view(), is_scaled) else { return Ok(Outcome::Done) };
        match context.merge(&resource, template.view(), patch).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(Outcome::Done),
        }
    }
}
