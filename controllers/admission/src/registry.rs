//! Validation of ResourceRegistries, for the aggregated API.

use crowsnest_api::search::{ResourceRegistry, ResourceSelector};
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::{Gvk, format};
use crowsnest_apimachinery::url::Url;

use super::{metadata, placement};

/// Validates a ResourceRegistry.
pub fn validate(registry: &ResourceRegistry) -> Vec<FieldError> {
    let mut errors = metadata::validate(&registry.metadata, false, format::validate_dns1123_subdomain);
    errors.extend(placement::validate_affinity(&registry.spec.target_cluster, "spec.targetCluster"));
    for (index, selector) in registry.spec.resource_selectors.iter().enumerate() {
        errors.extend(validate_selector(selector, &format!("spec.resourceSelectors[{index}]")));
    }
    let store = registry.spec.backend_store.as_ref().and_then(|store| store.open_search.as_ref());
    for (index, address) in store.iter().flat_map(|store| &store.addresses).enumerate() {
        let detail = match Url::parse(address) {
            Ok(url)
                if ["http", "https"].iter().any(|scheme| url.scheme.eq_ignore_ascii_case(scheme))
                    && !url.host.is_empty() =>
            {
                continue;
            }
            Ok(_) => "must be a valid http or https URL with non-empty scheme and host".to_owned(),
            Err(problem) => problem,
        };
        let field = format!("spec.backendStore.openSearch.addresses[{index}]");
        errors.push(FieldError::invalid(field, address, detail));
    }
    errors
}

fn validate_selector(selector: &ResourceSelector, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Err(error) = Gvk::parse(&selector.api_version, &selector.kind) {
        let field = format!("{path}.apiVersion");
        errors.push(FieldError::invalid(field, &selector.api_version, error.to_string()));
    }
    if !selector.namespace.is_empty() {
        let field = format!("{path}.namespace");
        let problems = format::validate_dns1123_label(&selector.namespace).into_iter();
        errors.extend(problems.map(|problem| FieldError::invalid(&field, &selector.namespace, problem)));
    }
    errors
}
