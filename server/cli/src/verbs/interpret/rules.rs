//! The interpreter operations in their order of output, with the documentation of their scripts.

use crowsnest_api::config::{CustomizationRules, InterpreterOperation as Operation, LuaRule};

/// An operation for which a customization can have a script.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) operation: Operation,
    /// Documentation of the script, as a Lua comment.
    pub(super) doc: &'static str,
}

const fn rule(operation: Operation, doc: &'static str) -> Rule {
    Rule { operation, doc }
}

pub(super) static RULES: [Rule; 8] = [
    rule(
        Operation::Retain,
        "Retains values that the member has set: returns the desired object with values of the observed one.
function Retain(desiredObj, observedObj)
  desiredObj.spec.paused = observedObj.spec.paused
  return desiredObj
end",
    ),
    rule(
        Operation::InterpretReplica,
        "Returns the number of replicas of an object, and the resource requirements of each replica.
function GetReplicas(desiredObj)
  local kube = require('kube')
  return desiredObj.spec.replicas, kube.accuratePodRequirements(desiredObj.spec.template)
end",
    ),
    rule(
        Operation::InterpretComponent,
        "Returns the replicas and requirements of each component of an object with several pod templates.
function GetComponents(desiredObj)
  local kube = require('kube')
  return {
    {name = 'leader', replicas = 1, replicaRequirements = kube.accuratePodRequirements(desiredObj.spec.leader)},
    {name = 'worker', replicas = desiredObj.spec.size, replicaRequirements = kube.accuratePodRequirements(desiredObj.spec.worker)},
  }
end",
    ),
    rule(
        Operation::ReviseReplica,
        "Sets the number of replicas in the object for a member.
function ReviseReplica(desiredObj, desiredReplica)
  desiredObj.spec.replicas = desiredReplica
  return desiredObj
end",
    ),
    rule(
        Operation::InterpretStatus,
        "Selects the status fields of a member's object that are collected.
function ReflectStatus(observedObj)
  return {phase = observedObj.status.phase}
end",
    ),
    rule(
        Operation::AggregateStatus,
        "Aggregates the members' status into the status of the template.
function AggregateStatus(desiredObj, statusItems)
  local ready = 0
  for _, item in ipairs(statusItems) do
    if item.status ~= nil then ready = ready + (item.status.readyReplicas or 0) end
  end
  desiredObj.status = {readyReplicas = ready}
  return desiredObj
end",
    ),
    rule(
        Operation::InterpretHealth,
        "Returns true if a member's object is healthy.
function InterpretHealth(observedObj)
  return observedObj.status.readyReplicas == observedObj.spec.replicas
end",
    ),
    rule(
        Operation::InterpretDependency,
        "Lists the dependencies that are propagated with the object.
function GetDependencies(desiredObj)
  return {
    {apiVersion = 'v1', kind = 'ConfigMap', namespace = desiredObj.metadata.namespace, name = desiredObj.spec.config},
  }
end",
    ),
];

impl Rule {
    pub(super) fn name(&self) -> &str {
        self.operation.as_str()
    }

    /// The operation's script; an empty script counts as none.
    pub(super) fn script<'c>(&self, rules: &'c CustomizationRules) -> Option<&'c str> {
        let mut scripts = rules.scripts().into_iter();
        scripts.find_map(|(operation, script)| (operation == self.operation).then_some(script)?)
    }

    /// Sets the operation's script; an empty script removes it.
    pub(super) fn set_script(&self, rules: &mut CustomizationRules, script: String) {
        let rule = match self.operation {
            Operation::Retain => &mut rules.retention,
            Operation::InterpretReplica => &mut rules.replica_resource,
            Operation::InterpretComponent => &mut rules.component_resource,
            Operation::ReviseReplica => &mut rules.replica_revision,
            Operation::InterpretStatus => &mut rules.status_reflection,
            Operation::AggregateStatus => &mut rules.status_aggregation,
            Operation::InterpretHealth => &mut rules.health_interpretation,
            Operation::InterpretDependency => &mut rules.dependency_interpretation,
            Operation::All | Operation::Prune | Operation::Other(_) => return,
        };
        *rule = (!script.is_empty()).then_some(LuaRule { lua_script: script });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_interpreter::customized::declarative;

    #[test]
    fn examples_are_valid_scripts() {
        for rule in &RULES {
            let (_, script) = rule.doc.split_once('\n').unwrap();
            declarative::compile(script).unwrap();
        }
    }

    #[test]
    fn scripts_are_set_read_and_removed() {
        for rule in &RULES {
            let mut rules = CustomizationRules::default();
            rule.set_script(&mut rules, "x".to_owned());
            let set: Vec<&str> = RULES.iter().filter(|rule| rule.script(&rules).is_some()).map(Rule::name).collect();
            assert_eq!(set, [rule.name()]);
            rule.set_script(&mut rules, String::new());
            assert_eq!(rules, CustomizationRules::default());
        }
    }
}
