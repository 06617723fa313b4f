//! `cluster.karmada.io/v1alpha1`: clusters, their status, proxy and agents' tunnels.

mod attach;
mod clusters;
mod columns;
mod proxy;

use crate::aggregated::resource::Resource;
use crate::aggregated::resource::registry::Group;

pub(crate) const NAME: &str = "cluster.karmada.io";

const RESOURCES: &[&dyn Resource] = &[&clusters::CLUSTERS, &attach::Attach, &proxy::ClusterProxy, &clusters::STATUS];

pub(crate) const GROUP: Group = Group::new(NAME, RESOURCES);
