import { expect, it } from 'vitest'
import { isNameOf } from './kinds'

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
])('%s names %s: %s', (word, kind, expected) => expect(isNameOf(word, kind)).toBe(expected))
