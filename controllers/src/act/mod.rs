//! The loops. Each owns a queue of keys; a change anywhere only asks for keys, a reconcile reads the world as it is,
//! asks `plan` what to do, and does it. [`Manager`] starts them all and says when one has died.

pub mod access;
pub mod bindings;
pub mod capacity;
pub mod catalog;
pub mod clusters;
pub mod config;
pub mod context;
pub mod discovering;
pub mod distributor;
pub mod events;
pub mod evictions;
pub mod namespaces;
pub mod objects;
pub mod queue;
pub mod rebalancer;
pub mod registries;
pub mod replicas_syncer;
pub mod scale_target_marker;
pub mod scheduling;
pub mod statuses;
pub mod templates;
pub mod works;
pub mod world;

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use crowsnest_api::names::ClusterName;
use crowsnest_index::Index;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use config::{Config, Periods, Workers};
use context::Context;
use discovering::Discovering;
use events::Events;
use objects::{Objects, Resource};
use queue::{Busy, Outcome, Queue};
use world::{Change, Listener, Teller, World};

use crate::Error;
use crate::plan::object;

/// All loops, so that handlers and timers reach them.
struct Loops {
    context: Arc<Context>,
    capacity: Arc<capacity::Capacity>,
    templates: Arc<templates::Templates>,
    scheduling: Arc<scheduling::Scheduling>,
    bindings: Arc<bindings::Bindings>,
    works: Arc<works::Works>,
    statuses: Arc<statuses::Statuses>,
    distributor: Arc<distributor::Distributor>,
    namespaces: Arc<namespaces::Namespaces>,
    clusters: Arc<clusters::Clusters>,
    evictions: Arc<evictions::Evictions>,
    access: Arc<access::Access>,
    rebalancer: Arc<rebalancer::Rebalancer>,
    scale_target_marker: Arc<scale_target_marker::ScaleTargetMarker>,
    replicas_syncer: Arc<replicas_syncer::ReplicasSyncer>,
    discovering: Discovering,
    /// Everything should be looked at before its turn.
    pass: Notify,
}

/// The running controllers.
pub struct Manager {
    loops: Arc<Loops>,
    health: watch::Receiver<Result<(), String>>,
    stop: CancellationToken,
    supervisor: tokio::task::JoinHandle<()>,
}

impl Manager {
    /// Starts every loop against the control plane of the cache's fleet. The cache has to be opened with
    /// [`world::chosen_labels`]. Returns at once; [`Manager::health`] says when the first look at everything is in, and
    /// when a loop has died.
    pub fn start(index: Index, config: Config, stop: CancellationToken) -> Self {
        let stop = stop.child_token();
        let fleet = index.fleet().clone();
        let (world, teller) = World::new(index, config.decoded_bytes);
        let (events, writer) =
            Events::new(Objects::new(fleet.control_plane()), "crowsnest-controllers", stop.child_token());
        let context = Context::new(fleet, world, events, config);
        let loops = Arc::new(Loops::new(context));
        let (health, reader) = watch::channel(Err("the control plane has not been read yet".to_owned()));
        let supervisor = tokio::spawn(supervise(Arc::clone(&loops), health, stop.clone(), (teller, writer)));
        Manager { loops, health: reader, stop, supervisor }
    }

    /// `Ok` while every loop runs and the control plane has been read.
    pub fn health(&self) -> watch::Receiver<Result<(), String>> {
        self.health.clone()
    }

    /// Asks every loop to look at everything again, as happens in turn anyway.
    pub async fn full_pass(&self) -> Result<(), Error> {
        self.loops.full_pass().await
    }

    /// Waits until no loop has anything to do.
    pub async fn idle(&self) {
        let loops = &self.loops;
        let queues: [&dyn Busy; 12] = [
            &loops.templates.templates,
            &loops.templates.policies,
            &loops.scheduling.bindings,
            &loops.bindings.bindings,
            &loops.works.works,
            &loops.statuses.bindings,
            &loops.distributor.parents,
            &loops.namespaces.namespaces,
            &loops.access.clusters,
            &loops.rebalancer.rebalancers,
            &loops.scale_target_marker.targets,
            &loops.replicas_syncer.deployments,
        ];
        let mut finished: Vec<_> = queues.iter().map(|queue| queue.finished()).collect();
        while !queues.iter().all(|queue| queue.is_idle()) {
            let next = finished.iter_mut().map(|finished| Box::pin(finished.changed()));
            drop(futures::future::select_all(next).await);
        }
    }

    /// Ends the loops, after what they are at.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.supervisor.await {
            tracing::error!(%error, "the controllers' supervisor died");
        }
    }
}

impl Loops {
    fn new(context: Arc<Context>) -> Self {
        let capacity = capacity::Capacity::new(Arc::clone(&context));
        Loops {
            templates: templates::Templates::new(Arc::clone(&context)),
            scheduling: scheduling::Scheduling::new(Arc::clone(&context), Arc::clone(&capacity)),
            bindings: bindings::Bindings::new(Arc::clone(&context)),
            works: works::Works::new(Arc::clone(&context)),
            statuses: statuses::Statuses::new(Arc::clone(&context)),
            distributor: distributor::Distributor::new(Arc::clone(&context)),
            namespaces: namespaces::Namespaces::new(Arc::clone(&context)),
            clusters: clusters::Clusters::new(Arc::clone(&context), Arc::clone(&capacity)),
            evictions: evictions::Evictions::new(Arc::clone(&context)),
            access: access::Access::new(Arc::clone(&context)),
            rebalancer: rebalancer::Rebalancer::new(Arc::clone(&context)),
            scale_target_marker: scale_target_marker::ScaleTargetMarker::new(Arc::clone(&context)),
            replicas_syncer: replicas_syncer::ReplicasSyncer::new(Arc::clone(&context)),
            discovering: Discovering::default(),
            pass: Notify::new(),
            capacity,
            context,
        }
    }

    /// Scripts may change the meaning of any template, wherever it is on its way.
    fn on_customization(&self, change: &Change) {
        let name = object::name(change.object());
        match change.current().map(context::decode).transpose() {
            Ok(customization) => self.context.interpreter.learn(name, customization.as_ref()),
            Err(error) => tracing::warn!(name, %error, "customization cannot be read; the one before it stays"),
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
            self.works.forget(&name);
        }
    }

    async fn full_pass(&self) -> Result<(), Error> {
        self.templates.full_pass().await?;
        self.scheduling.full_pass().await?;
        self.bindings.full_pass().await?;
        self.works.full_pass().await?;
        self.statuses.full_pass().await?;
        self.distributor.full_pass().await?;
        self.namespaces.full_pass().await?;
        self.clusters.full_pass().await?;
        self.access.full_pass().await?;
        self.rebalancer.full_pass().await?;
        self.scale_target_marker.full_pass();
        Ok(())
    }

    /// Follows what the control plane serves: in turn, and when a definition changed.
    async fn keep_discovering(self: Arc<Self>, stop: CancellationToken) -> Result<(), String> {
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

    async fn keep_passing(self: Arc<Self>, stop: CancellationToken) -> Result<(), String> {
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

    /// Reads the control plane for the first time; decisions made on half of it would be wrong.
    async fn first_look(&self, stop: &CancellationToken) {
        let context = &self.context;
        for resource in context.kinds.of_control_plane() {
            context.world.collect(&context.control_plane, resource);
        }
        let mut delay = Duration::from_millis(100);
        while let Err(error) = self.discover_once().await {
            tracing::warn!(%error, "discovery failed");
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(delay) => delay = (delay * 2).min(Duration::from_secs(5)),
            }
        }
        for resource in context.kinds.of_control_plane() {
            while !context.world.wait_synced(&context.control_plane, &resource.gvr, Duration::from_secs(1)).await {
                if stop.is_cancelled() {
                    return;
                }
            }
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
            return self.works.on_change(change).await;
        }
        self.templates.on_change(change);
        self.scheduling.on_change(change).await?;
        self.bindings.on_change(change).await?;
        self.works.on_change(change).await?;
        self.statuses.on_change(change);
        self.distributor.on_change(change);
        self.namespaces.on_change(change).await?;
        self.clusters.on_change(change);
        self.evictions.on_change(change).await?;
        self.access.on_change(change).await?;
        self.rebalancer.on_change(change);
        self.scale_target_marker.on_change(change);
        self.replicas_syncer.on_change(change);
        self.discovering.on_change(change);
        if change.resource.gvr == self.context.kinds.cluster.gvr {
            self.on_cluster(change);
        } else if change.resource.gvr == self.context.kinds.interpreter_customization.gvr {
            self.on_customization(change);
        }
        Ok(())
    }

    fn told_again(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<(String, String)>) {
        if *cluster == self.context.control_plane {
            self.templates.told_again(resource, keys);
            self.scheduling.told_again(resource, keys);
            self.distributor.told_again(resource, keys);
            self.scale_target_marker.told_again(resource, keys);
            if *resource == self.context.kinds.interpreter_customization {
                self.context.interpreter.keep(|name| keys.contains(&(String::new(), name.to_owned())));
            }
        } else {
            self.capacity.told_again(cluster, resource, keys);
        }
    }

    fn look_at_everything(&self) {
        self.pass.notify_one();
    }
}

type Tasks = JoinSet<Result<(), String>>;

fn spawn<K, L, R>(
    tasks: &mut Tasks,
    queue: &Queue<K>,
    workers: usize,
    stop: &CancellationToken,
    owner: &Arc<L>,
    reconcile: fn(Arc<L>, K) -> R,
) where
    K: Hash + Eq + Clone + Debug + Send + 'static,
    L: Send + Sync + 'static,
    R: Future<Output = Result<Outcome, Error>> + Send + 'static,
{
    let owner = Arc::clone(owner);
    let (queue, stop) = (queue.clone(), stop.clone());
    tasks.spawn(queue.run(workers, stop, move |key| reconcile(Arc::clone(&owner), key)));
}

async fn supervise(
    loops: Arc<Loops>,
    health: watch::Sender<Result<(), String>>,
    stop: CancellationToken,
    (teller, writer): (Teller, impl Future<Output = ()> + Send + 'static),
) {
    let mut tasks: Tasks = JoinSet::new();
    let listener: Arc<dyn Listener> = Arc::<Loops>::clone(&loops);
    tasks.spawn(teller.run(listener, stop.clone()));
    let ending = stop.clone();
    tasks.spawn(async move {
        writer.await;
        if ending.is_cancelled() { Ok(()) } else { Err("the event recorder ended".to_owned()) }
    });
    loops.first_look(&stop).await;
    let l = &loops;
    let workers = &l.context.config.workers;
    let some = workers.others;
    spawn(&mut tasks, &l.clusters.lives, some, &stop, &l.clusters, clusters::Clusters::reconcile_life);
    spawn(&mut tasks, &l.clusters.statuses, 64, &stop, &l.clusters, clusters::Clusters::reconcile_status);
    spawn(&mut tasks, &l.namespaces.namespaces, some, &stop, &l.namespaces, namespaces::Namespaces::reconcile);
    spawn(&mut tasks, &l.access.clusters, some, &stop, &l.access, access::Access::reconcile);
    spawn(&mut tasks, &l.rebalancer.rebalancers, some, &stop, &l.rebalancer, rebalancer::Rebalancer::reconcile);
    spawn(
        &mut tasks,
        &l.scale_target_marker.targets,
        some,
        &stop,
        &l.scale_target_marker,
        scale_target_marker::ScaleTargetMarker::reconcile,
    );
    spawn(
        &mut tasks,
        &l.replicas_syncer.deployments,
        some,
        &stop,
        &l.replicas_syncer,
        replicas_syncer::ReplicasSyncer::reconcile,
    );
    spawn(&mut tasks, &l.templates.policies, some, &stop, &l.templates, templates::Templates::reconcile_policy);
    spawn(
        &mut tasks,
        &l.templates.templates,
        workers.templates,
        &stop,
        &l.templates,
        templates::Templates::reconcile_template,
    );
    spawn(
        &mut tasks,
        &l.scheduling.bindings,
        workers.scheduling,
        &stop,
        &l.scheduling,
        scheduling::Scheduling::reconcile,
    );
    spawn(&mut tasks, &l.distributor.parents, some, &stop, &l.distributor, distributor::Distributor::reconcile);
    spawn(&mut tasks, &l.bindings.bindings, workers.bindings, &stop, &l.bindings, bindings::Bindings::reconcile);
    spawn(&mut tasks, &l.works.works, workers.works, &stop, &l.works, works::Works::reconcile);
    spawn(&mut tasks, &l.statuses.bindings, workers.bindings, &stop, &l.statuses, statuses::Statuses::reconcile);
    spawn(&mut tasks, &l.evictions.bindings, some, &stop, &l.evictions, evictions::Evictions::reconcile);
    tasks.spawn(Arc::clone(&loops).keep_discovering(stop.clone()));
    tasks.spawn(Arc::clone(&loops).keep_passing(stop.clone()));
    if !stop.is_cancelled() {
        drop(health.send_replace(Ok(())));
    }
    while let Some(ended) = tasks.join_next().await {
        let reason = match ended {
            Ok(Ok(())) if stop.is_cancelled() => continue,
            Ok(Ok(())) => "a loop ended by itself".to_owned(),
            Ok(Err(reason)) => reason,
            Err(error) => format!("a loop died: {error}"),
        };
        tracing::error!(reason, "the controllers are not whole any more");
        drop(health.send_replace(Err(reason)));
    }
}
