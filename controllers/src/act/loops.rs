//! All loops: how changes, timers and first looks reach them. Written by [`super::Manager`], run by `supervise`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use crowsnest_api::names::binding_name;
use crowsnest_apimachinery::names::ClusterName;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::context::Context;
use super::controllers::Controller;
use super::discovering::Discovering;
use super::objects::Resource;
use super::queue::Busy;
use super::world::{Change, Listener};
use super::{
    access, applications, autoscaling, bindings, capacity, certificates, clusters, context, descheduling, distributor,
    evictions, namespaces, quotas, rebalancer, remedies, replicas_syncer, returning, scale_target_marker, scheduling,
    services, statuses, taint_policies, templates, works,
};
use crate::Error;
use crowsnest_plan::object;

/// All loops, so that handlers and timers reach them.
pub(super) struct Loops {
    pub(super) context: Arc<Context>,
    pub(super) capacity: Arc<capacity::Capacity>,
    pub(super) templates: Arc<templates::Templates>,
    pub(super) scheduling: Arc<scheduling::Scheduling>,
    pub(super) bindings: Arc<bindings::Bindings>,
    pub(super) works: Arc<works::Works>,
    pub(super) statuses: Arc<statuses::Statuses>,
    pub(super) distributor: Arc<distributor::Distributor>,
    pub(super) namespaces: Arc<namespaces::Namespaces>,
    pub(super) clusters: Arc<clusters::Clusters>,
    pub(super) descheduling: Arc<descheduling::Descheduling>,
    pub(super) evictions: Arc<evictions::Evictions>,
    pub(super) access: Arc<access::Access>,
    pub(super) rebalancer: Arc<rebalancer::Rebalancer>,
    pub(super) quotas: Arc<quotas::Quotas>,
    pub(super) taint_policies: Arc<taint_policies::TaintPolicies>,
    pub(super) remedies: Arc<remedies::Remedies>,
    pub(super) applications: Arc<applications::Applications>,
    pub(super) returning: Arc<returning::Returning>,
    pub(super) exports: Arc<services::Exports>,
    pub(super) slices: Arc<services::Slices>,
    pub(super) imports: Arc<services::Imports>,
    pub(super) spanning: Arc<services::Spanning>,
    pub(super) ingresses: Arc<services::Ingresses>,
    pub(super) collecting: Arc<services::Collecting>,
    pub(super) autoscaling: Arc<autoscaling::Federated>,
    pub(super) cron_autoscaling: Arc<autoscaling::Cron>,
    pub(super) scale_target_marker: Arc<scale_target_marker::ScaleTargetMarker>,
    pub(super) replicas_syncer: Arc<replicas_syncer::ReplicasSyncer>,
    pub(super) certificates: Arc<certificates::Certificates>,
    pub(super) discovering: Discovering,
    /// Everything should be looked at before its turn.
    pub(super) pass: Notify,
}

impl Loops {
    pub(super) fn new(context: Arc<Context>) -> Self {
        let capacity = capacity::Capacity::new(Arc::clone(&context));
        let scheduling = scheduling::Scheduling::new(Arc::clone(&context), Arc::clone(&capacity));
        Loops {
            templates: templates::Templates::new(Arc::clone(&context)),
            bindings: bindings::Bindings::new(Arc::clone(&context)),
            works: works::Works::new(Arc::clone(&context)),
            statuses: statuses::Statuses::new(Arc::clone(&context)),
            distributor: distributor::Distributor::new(Arc::clone(&context)),
            namespaces: namespaces::Namespaces::new(Arc::clone(&context)),
            clusters: clusters::Clusters::new(Arc::clone(&context), Arc::clone(&capacity)),
            descheduling: descheduling::Descheduling::new(Arc::clone(&context), Arc::clone(&capacity)),
            evictions: evictions::Evictions::new(Arc::clone(&context)),
            access: access::Access::new(Arc::clone(&context)),
            rebalancer: rebalancer::Rebalancer::new(Arc::clone(&context)),
            quotas: quotas::Quotas::new(Arc::clone(&context)),
            taint_policies: taint_policies::TaintPolicies::new(Arc::clone(&context)),
            remedies: remedies::Remedies::new(Arc::clone(&context)),
            applications: applications::Applications::new(Arc::clone(&context), Arc::clone(&scheduling)),
            returning: returning::Returning::new(Arc::clone(&context), Arc::clone(&scheduling)),
            exports: services::Exports::new(Arc::clone(&context)),
            slices: services::Slices::new(Arc::clone(&context)),
            imports: services::Imports::new(Arc::clone(&context)),
            spanning: services::Spanning::new(Arc::clone(&context)),
            ingresses: services::Ingresses::new(Arc::clone(&context)),
            collecting: services::Collecting::new(Arc::clone(&context)),
            autoscaling: autoscaling::Federated::new(Arc::clone(&context)),
            cron_autoscaling: autoscaling::Cron::new(Arc::clone(&context)),
            scale_target_marker: scale_target_marker::ScaleTargetMarker::new(Arc::clone(&context)),
            replicas_syncer: replicas_syncer::ReplicasSyncer::new(Arc::clone(&context)),
            certificates: certificates::Certificates::new(Arc::clone(&context)),
            discovering: Discovering::default(),
            pass: Notify::new(),
            scheduling,
            capacity,
            context,
        }
    }

    /// What every loop has to do, and the switch of those that have one.
    pub(super) fn queues(&self) -> [(&dyn Busy, Option<Controller>); 32] {
        [
            (&self.templates.templates, None),
            (&self.templates.policies, None),
            (&self.scheduling.bindings, None),
            (&self.bindings.bindings, Some(Controller::Binding)),
            (&self.works.works, Some(Controller::Execution)),
            (&self.statuses.bindings, Some(Controller::BindingStatus)),
            (&self.distributor.parents, None),
            (&self.namespaces.namespaces, Some(Controller::Namespace)),
            (&self.clusters.lives, Some(Controller::Cluster)),
            (&self.clusters.statuses, Some(Controller::ClusterStatus)),
            (&self.clusters.leases, Some(Controller::Cluster)),
            (&self.descheduling.bindings, Some(Controller::Descheduler)),
            (&self.evictions.bindings, None),
            (&self.evictions.halts, None),
            (&self.returning.bindings, None),
            (&self.access.clusters, Some(Controller::UnifiedAuth)),
            (&self.rebalancer.rebalancers, Some(Controller::WorkloadRebalancer)),
            (&self.quotas.quotas, Some(Controller::FederatedResourceQuota)),
            (&self.taint_policies.clusters, Some(Controller::ClusterTaintPolicy)),
            (&self.remedies.clusters, Some(Controller::Remedy)),
            (&self.applications.bindings, Some(Controller::ApplicationFailover)),
            (&self.exports.services, Some(Controller::ServiceExport)),
            (&self.slices.works, Some(Controller::EndpointSlice)),
            (&self.imports.imports, Some(Controller::ServiceImport)),
            (&self.spanning.services, Some(Controller::MultiClusterService)),
            (&self.ingresses.ingresses, Some(Controller::MultiClusterService)),
            (&self.collecting.services, Some(Controller::EndpointSliceCollect)),
            (&self.autoscaling.autoscalers, Some(Controller::FederatedHpa)),
            (&self.cron_autoscaling.autoscalers, Some(Controller::CronFederatedHpa)),
            (&self.scale_target_marker.targets, Some(Controller::HpaScaleTargetMarker)),
            (&self.replicas_syncer.deployments, Some(Controller::DeploymentReplicasSyncer)),
            (&self.certificates.requests, Some(Controller::AgentCsrApproving)),
        ]
    }

    /// What is switched off keeps no keys, and is not run.
    pub(super) fn close_switched_off(&self) {
        let running = &self.context.config.controllers;
        let off = |controller: Option<Controller>| controller.is_some_and(|controller| !running.runs(controller));
        self.queues().iter().filter(|(_, controller)| off(*controller)).for_each(|(queue, _)| queue.close());
    }

    /// Scripts may change the meaning of their kind's objects, wherever those are on their way.
    async fn on_customization(&self, change: &Change) -> Result<(), Error> {
        let name = object::name(change.object());
        let before = self.context.interpreter.target_of(name);
        match change.current().map(context::decode).transpose() {
            Ok(customization) => self.context.interpreter.learn(name, customization.as_ref()),
            Err(error) => tracing::warn!(name, %error, "customization cannot be read; the one before it stays"),
        }
        if change.initial {
            return Ok(());
        }
        let after = self.context.interpreter.target_of(name).filter(|after| Some(after) != before.as_ref());
        for (api_version, kind) in before.iter().chain(&after) {
            self.ask_for_kind(api_version, kind).await?;
        }
        Ok(())
    }

    /// What a kind means has changed: its templates, their bindings and Works are looked at again.
    async fn ask_for_kind(&self, api_version: &str, kind: &str) -> Result<(), Error> {
        let resources = self.context.world.resources(&self.context.control_plane);
        let of_kind = |resource: &&Arc<Resource>| resource.kind == kind && resource.gvr.api_version() == api_version;
        let templates = resources.iter().filter(|resource| templates::is_template_resource(&resource.gvr));
        if let Some(resource) = templates.into_iter().find(of_kind) {
            for (namespace, name) in self.context.keys(resource).await? {
                let binding = (namespace.clone(), binding_name(kind, &name));
                if !namespace.is_empty() {
                    self.distributor.parents.add(binding.clone());
                }
                self.bindings.bindings.add(binding.clone());
                self.statuses.bindings.add(binding);
                self.templates.ask(resource, namespace, name);
            }
        }
        self.works.ask_for_kind(api_version, kind);
        Ok(())
    }

    /// So may webhooks.
    fn on_webhooks(&self, change: &Change) {
        let name = object::name(change.object());
        match change.current().map(context::decode).transpose() {
            Ok(configuration) => self.context.interpreter.learn_webhooks(name, configuration.as_ref()),
            Err(error) => tracing::warn!(name, %error, "webhooks cannot be read; those before them stay"),
        }
        if !change.initial {
            self.pass.notify_one();
        }
    }

    fn on_cluster(&self, change: &Change) {
        let Ok(name) = ClusterName::parse(object::name(change.object())) else { return };
        if change.deleted {
            self.context.world.forget(&name);
            self.context.catalog.forget(&name);
            self.capacity.forget(&name);
            if let Some(estimators) = &self.context.config.estimators {
                estimators.forget(name.as_str());
            }
        }
    }

    pub(super) async fn full_pass(&self) -> Result<(), Error> {
        self.templates.full_pass().await?;
        self.scheduling.full_pass().await?;
        self.bindings.full_pass().await?;
        self.works.full_pass().await?;
        self.statuses.full_pass().await?;
        self.distributor.full_pass().await?;
        self.namespaces.full_pass().await?;
        self.clusters.full_pass().await?;
        self.evictions.full_pass();
        self.returning.full_pass();
        self.access.full_pass().await?;
        self.rebalancer.full_pass().await?;
        self.quotas.full_pass();
        self.taint_policies.full_pass().await?;
        self.remedies.full_pass().await?;
        self.applications.full_pass().await?;
        self.exports.full_pass().await?;
        self.slices.full_pass().await?;
        self.imports.full_pass().await?;
        self.spanning.full_pass();
        self.ingresses.full_pass();
        self.collecting.full_pass().await?;
        self.autoscaling.full_pass().await?;
        self.cron_autoscaling.full_pass().await?;
        self.scale_target_marker.full_pass();
        self.certificates.full_pass().await?;
        Ok(())
    }

    /// Follows what the control plane serves: in turn, and when a definition changed.
    pub(super) async fn keep_discovering(self: Arc<Self>, stop: CancellationToken) -> Result<(), String> {
        let period = self.context.config.periods.discovery;
        let mut looks = 0;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.discovering.due(period, &mut looks) => {}
            }
            if let Err(error) = self.discover_once().await {
                tracing::warn!(%error, "discovery failed");
            }
        }
    }

    async fn discover_once(&self) -> Result<(), Error> {
        let served = self.context.catalog.refresh(&self.context.control_plane).await?;
        self.templates.follow(&served);
        self.discovering.seen(&served);
        Ok(())
    }

    pub(super) async fn keep_passing(self: Arc<Self>, stop: CancellationToken) -> Result<(), String> {
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(self.context.config.periods.full_pass) => {}
                () = self.pass.notified() => {}
            }
            // The next one makes good for it; queues keep what they have.
            if let Err(error) = self.full_pass().await {
                tracing::error!(%error, "not everything could be looked at");
            }
        }
    }

    /// Reads the control plane for the first time; decisions made on half of it would be wrong. Ends at once with `stop`: nobody
    /// tells any more what is waited for, and whoever leads next in this process waits for the end.
    pub(super) async fn first_look(&self, stop: &CancellationToken) {
        stop.run_until_cancelled(self.read_control_plane()).await;
    }

    async fn read_control_plane(&self) {
        let context = &self.context;
        for resource in context.kinds.of_control_plane() {
            context.world.collect(&context.control_plane, resource);
        }
        let mut delay = Duration::from_millis(100);
        while let Err(error) = self.discover_once().await {
            tracing::warn!(%error, "discovery failed");
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(Duration::from_secs(5));
        }
        for resource in context.kinds.of_control_plane() {
            while !context.world.wait_synced(&context.control_plane, &resource.gvr, Duration::from_secs(1)).await {}
        }
        for resource in context.world.resources(&context.control_plane) {
            // One resource that can't be listed doesn't hold up the others' propagation.
            let longest = Duration::from_secs(10);
            if !context.world.wait_synced(&context.control_plane, &resource.gvr, longest).await {
                tracing::warn!(resource = %resource.gvr, "not listed yet");
            }
        }
    }
}

#[async_trait]
impl Listener for Loops {
    async fn changed(&self, change: &Change) -> Result<(), Error> {
        if change.cluster != self.context.control_plane {
            if self.capacity.on_change(change) {
                self.scheduling.room_grew();
            }
            self.exports.on_member_change(change);
            self.collecting.on_member_change(change);
            return self.works.on_change(change).await;
        }
        if self.context.kinds.is_of_bindings(&change.resource) {
            self.context.placements.learn(change);
        }
        self.templates.on_change(change);
        self.scheduling.on_change(change).await?;
        self.bindings.on_change(change).await?;
        self.works.on_change(change).await?;
        self.statuses.on_change(change);
        self.distributor.on_change(change);
        self.namespaces.on_change(change).await?;
        self.clusters.on_change(change);
        self.evictions.on_change(change);
        self.returning.on_change(change);
        self.access.on_change(change).await?;
        self.rebalancer.on_change(change);
        self.quotas.on_change(change);
        self.taint_policies.on_change(change).await?;
        self.remedies.on_change(change).await?;
        self.applications.on_change(change);
        self.exports.on_change(change);
        self.slices.on_change(change).await?;
        self.imports.on_change(change).await?;
        self.spanning.on_change(change);
        self.ingresses.on_change(change);
        self.collecting.on_change(change);
        self.autoscaling.on_change(change);
        self.cron_autoscaling.on_change(change);
        self.scale_target_marker.on_change(change);
        self.replicas_syncer.on_change(change);
        self.certificates.on_change(change);
        self.discovering.on_change(change);
        if change.resource.gvr == self.context.kinds.cluster.gvr {
            self.on_cluster(change);
        } else if change.resource.gvr == self.context.kinds.interpreter_customization.gvr {
            self.on_customization(change).await?;
        } else if change.resource.gvr == self.context.kinds.interpreter_webhook.gvr {
            self.on_webhooks(change);
        }
        Ok(())
    }

    fn told_again(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<(String, String)>) {
        if *cluster == self.context.control_plane {
            self.templates.told_again(resource, keys);
            self.scheduling.told_again(resource, keys);
            self.bindings.told_again(resource, keys);
            if self.context.kinds.is_of_bindings(resource) {
                self.context.placements.keep(resource.namespaced, keys);
            }
            self.evictions.told_again(resource, keys);
            self.distributor.told_again(resource, keys);
            self.quotas.told_again(resource, keys);
            self.scale_target_marker.told_again(resource, keys);
            if *resource == self.context.kinds.interpreter_customization {
                self.context.interpreter.keep(|name| keys.contains(&(String::new(), name.to_owned())));
            }
            if *resource == self.context.kinds.interpreter_webhook {
                self.context.interpreter.keep_webhooks(|name| keys.contains(&(String::new(), name.to_owned())));
            }
        } else {
            self.capacity.told_again(cluster, resource, keys);
        }
    }

    fn look_at_everything(&self) {
        self.pass.notify_one();
    }
}
