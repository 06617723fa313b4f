import { expect, it } from 'vitest'
import { excludedValues } from './facets'

it('a short name and its kind are one facet value', () => {
  expect(excludedValues('-kind:deploy', 'kind', [{ value: 'Deployment', count: 3 }])).toEqual([])
  expect(excludedValues('-kind:deploy', 'kind', [{ value: 'Pod', count: 3 }])).toEqual([{ value: 'deploy', count: 0 }])
  expect(excludedValues('kind:deploy', 'kind', [])).toEqual([])
  expect(excludedValues('-kind:deployments.apps', 'kind', [{ value: 'Deployment', count: 2 }])).toEqual([{ value: 'deployments.apps', count: 0 }])
})
