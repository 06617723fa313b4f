//! Errors of connect requests in a server without kubelets: those of kube-apiserver before it dials a node. Has no side
//! effects; used by `subresource` if no handler is registered.

use crowsnest_apimachinery::status::{ApiError, ApiResult, Reason};
use crowsnest_registry::object::Object;
use serde_json::Value;

/// Target of a connect request.
pub(super) struct ConnectTarget<'a> {
    /// The pod, node or Service.
    pub object: &'a Value,
    /// The node of the pod, if it exists.
    pub node: Option<&'a Value>,
}

/// Returns the error of the request; `Ok` for the log of an unscheduled pod, which is empty.
pub(super) fn check_reachable(
    resource: &str,
    subresource: &str,
    container: &str,
    target: &ConnectTarget<'_>,
) -> ApiResult<()> {
    let name = target.object.name();
    match (resource, subresource) {
        ("services", _) => {
            let reason = format!("no endpoints available for service {name:?}");
            Err(ApiError::new(Reason::ServiceUnavailable, reason))
        }
        ("pods", "proxy") => match target.object["status"]["podIP"].as_str() {
            None | Some("") => Err(ApiError::bad_request("address not allowed")),
            Some(address) => Err(unreachable_error(address)),
        },
        ("pods", _) => {
            if subresource != "portforward" {
                check_container(target.object, container)?;
            }
            match (target.object["spec"]["nodeName"].as_str().unwrap_or_default(), target.node) {
                ("", _) if subresource == "log" => Ok(()),
                ("", _) => Err(ApiError::bad_request(format!("pod {name} does not have a host assigned"))),
                (node, None) => Err(ApiError::not_found("", "nodes", node)),
                (node, Some(_)) => Err(unreachable_error(node)),
            }
        }
        _ => Err(unreachable_error(name)),
    }
}

fn unreachable_error(node: &str) -> ApiError {
    ApiError::new(Reason::ServiceUnavailable, format!("this server has no connection to {node}"))
}

/// Validates the container name, which can be omitted if the pod has one container.
fn check_container(pod: &Value, requested: &str) -> ApiResult<()> {
    let names = |list: &str| -> Vec<&str> {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        containers.filter_map(|container| container["name"].as_str()).collect()
    };
    let (containers, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    let name = pod.name();
    if !requested.is_empty() {
        return match containers.iter().chain(&init).chain(&ephemeral).any(|name| *name == requested) {
            true => Ok(()),
            false => Err(ApiError::bad_request(format!("container {requested} is not valid for pod {name}"))),
        };
    }
    if containers.len() == 1 {
        return Ok(());
    }
    let mut reason =
        format!("a container name must be specified for pod {name}, choose one of: [{}]", containers.join(" "));
    for (names, container_type) in [(init, "init"), (ephemeral, "ephemeral")] {
        if !names.is_empty() {
            reason += &format!(" or one of the {container_type} containers: [{}]", names.join(" "));
        }
    }
    Err(ApiError::bad_request(reason))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::log_of_unscheduled_pod("log", "", None, "c", "")]
    #[case::exec_in_unscheduled_pod("exec", "", None, "c", "pod p does not have a host assigned")]
    #[case::portforward_ignores_the_container("portforward", "", None, "zz", "pod p does not have a host assigned")]
    #[case::unknown_container("log", "", None, "zz", "container zz is not valid for pod p")]
    #[case::several_containers(
        "log",
        "",
        None,
        "",
        "a container name must be specified for pod p, choose one of: [c d] or one of the init containers: [i]"
    )]
    #[case::missing_node("attach", "n", None, "c", "nodes \"n\" not found")]
    #[case::existing_node("attach", "n", Some(json!({})), "c", "this server has no connection to n")]
    #[case::proxy("proxy", "", None, "", "address not allowed")]
    fn connect_requests_to_pods_fail_like_in_kube_apiserver(
        #[case] subresource: &str,
        #[case] node_name: &str,
        #[case] node: Option<Value>,
        #[case] container: &str,
        #[case] expected: &str,
    ) {
        let object = json!({"metadata": {"name": "p"}, "spec": {"nodeName": node_name,
            "containers": [{"name": "c"}, {"name": "d"}], "initContainers": [{"name": "i"}]}});
        let target = ConnectTarget { object: &object, node: node.as_ref() };
        let message = check_reachable("pods", subresource, container, &target)
            .err()
            .map(|error| error.message)
            .unwrap_or_default();
        assert_eq!(message, expected);
    }
}
