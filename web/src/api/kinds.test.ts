import { expect, it } from 'vitest'
import { isKindName, resourceOf } from './kinds'

it.each([
  ['deploy', 'Deployment', true],
  ['Deployments', 'Deployment', true],
  ['deployment', 'Deployment', true],
  ['po', 'Pod', true],
  ['ingresses', 'Ingress', true],
  ['networkpolicies', 'NetworkPolicy', true],
  ['endpoints', 'Endpoints', true],
  ['gateways', 'Gateway', true],
  ['deploy', 'DeploymentRuntimeConfig', false],
  ['pods', 'PodTemplate', false],
  ['deployments.apps', 'Deployment', true],
  ['Deployment.apps', 'Deployment.apps', true],
  ['deploy.apps', 'Deployment.apps', true],
  ['networkpolicies.networking.k8s.io', 'NetworkPolicy.networking.k8s.io', true],
  ['deployments.apps', 'Deployment.example.io', false],
  ['deployments', 'Deployment.apps', false],
  ['deployments.apps', 'Pod', false],
])('%s names %s: %s', (word, kind, expected) => expect(isKindName(word, kind)).toBe(expected))

it('without anyGroup, a value with a group does not name a kind without one', () => {
  expect(isKindName('deployments.apps', 'Deployment', false)).toBe(false)
  expect(isKindName('deploy', 'Deployment', false)).toBe(true)
})

it.each([
  ['apps/v1', 'ReplicaSet', 'replicasets'],
  ['networking.k8s.io/v1', 'Ingress', 'ingresses'],
  ['v1', 'Endpoints', 'endpoints'],
  ['policy.karmada.io/v1alpha1', 'ClusterOverridePolicy', 'clusteroverridepolicies'],
  ['example.io/v1', 'Thing', undefined],
])('the resource of %s %s is %s', (apiVersion, kind, resource) => expect(resourceOf(apiVersion, kind)).toBe(resource))
