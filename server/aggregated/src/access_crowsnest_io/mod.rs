//! `access.crowsnest.io/v1alpha1`: reviews of access by RBAC in all clusters. A ResourceAccessReview lists who may perform
//! an action, a SubjectRulesReview what a subject may do, each with the bindings, roles and rules that allow it.
//!
//! Reviews are computed from the RBAC objects in the cache that the caller may list in each cluster; nothing is written.
//! docs/ACCESS.md describes input and output.

mod body;
mod control_plane;
mod evaluation;
mod indirect;
mod openapi;
mod page;
mod render;
mod resource_access;
mod subject_rules;
mod validation;

use crowsnest_api::aggregated_groups;

use crate::resource::openapi::Document;
use crate::resource::registry::Group;
use crate::resource::{CREATE, Definition, HandledResource, Handler, Paths, Resource};

const NAME: &str = aggregated_groups::CROWSNEST_ACCESS.name;
const API_VERSION: &str = "access.crowsnest.io/v1alpha1";

const RESOURCES: &[&dyn Resource] = &[&resource_access::RESOURCE_ACCESS_REVIEWS, &subject_rules::SUBJECT_RULES_REVIEWS];

pub const GROUP: Group =
    Group { schemas: openapi::schemas, ..Group::new(&aggregated_groups::CROWSNEST_ACCESS, RESOURCES) };

/// A resource for reviews of one kind, which are computed for each request and not stored.
const fn reviews(
    [resource, singular, kind]: [&'static str; 3],
    describe: fn(&Definition, &mut Document),
    handler: Handler,
) -> HandledResource {
    let definition = Definition { singular, ..Definition::new(resource, kind, CREATE, Paths::Collection) };
    HandledResource { definition, describe, handler }
}
