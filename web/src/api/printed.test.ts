import { expect, it } from 'vitest'
import { pathsOf } from './printed'

it('columns of a definition that are plain paths', () => {
  const paths = ['.spec.replicas', '.spec.hosts[0]', '.metadata.creationTimestamp', '.status.conditions[?(@.type=="Ready")].status', '.spec.a,b']
  expect(pathsOf(paths.map((jsonPath) => ({ jsonPath })))).toEqual(['.spec.replicas', '.spec.hosts[0]'])
  expect(pathsOf(undefined)).toEqual([])
})
