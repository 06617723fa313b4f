//! `search.karmada.io/v1alpha1`: registries of cached resources, and reads and writes over all members.

mod proxying;
mod resource_registries;
mod search;

use crate::resource::Resource;
use crate::resource::registry::Group;
use crate::server::AggregatedServer;
use crowsnest_api::aggregated_groups;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_runtime::roles::RunningRoles;

pub const NAME: &str = aggregated_groups::SEARCH.name;

const RESOURCES: &[&dyn Resource] = &[
    &proxying::PROXYING,
    &proxying::FLEET_PROXY,
    &resource_registries::REGISTRIES,
    &resource_registries::STATUS,
    &search::CACHE,
    &search::OPENSEARCH,
];

pub const GROUP: Group = Group::new(&aggregated_groups::SEARCH, RESOURCES);

/// The running roles. Fails until registries have been read, because until then a request for a registered resource
/// would go to the control plane.
fn running_with_registries(server: &AggregatedServer) -> Result<&RunningRoles, ApiError> {
    let running = server.running()?;
    match running.has_listed_registries() {
        true => Ok(running),
        false => Err(ApiError::unavailable("ResourceRegistries have not been read yet")),
    }
}
