// Boundary that shows an error of a view in its place, so that the rest of the page stays.
import { Component, useEffect, useRef, type ReactNode } from 'react'
import { useLocation, useSearch as useParameters } from 'wouter'

/** The code of a part of the page could not be loaded. */
export class LoadError extends Error {
  constructor(
    cause: unknown,
    /** URL of the file that failed, if the browser names it. */
    readonly file: string | undefined,
  ) {
    super(String(cause), { cause })
  }
}

export interface Failure {
  error: Error
  /** Number of errors since the boundary was shown, including this one. */
  count: number
}

interface ErrorBoundaryProps {
  /** Rendered again after `retry`. */
  children: () => ReactNode
  fallback: (failure: Failure, retry: () => void) => ReactNode
  /** True for errors of this boundary; an outer boundary shows others. */
  catches: (error: Error) => boolean
}

interface ErrorBoundaryState {
  error?: Error | undefined
  retries: number
}

export class ErrorBoundary extends Component<ErrorBoundaryProps, ErrorBoundaryState> {
  override state: ErrorBoundaryState = { retries: 0 }

  static getDerivedStateFromError(thrown: unknown): Partial<ErrorBoundaryState> {
    return { error: thrown instanceof Error ? thrown : new Error(String(thrown)) }
  }

  private readonly retry = () => this.setState(({ error, retries }) => (error ? { error: undefined, retries: retries + 1 } : null))

  override render(): ReactNode {
    const { children, fallback, catches } = this.props
    const { error, retries } = this.state
    if (!error) return children()
    if (!catches(error)) throw error
    // Retries are counted, because `componentDidCatch` counts an error only after the fallback was rendered.
    return fallback({ error, count: retries + 1 }, this.retry)
  }
}

/** Calls back when the address changes. */
export function useOnAddressChange(callback: () => void): void {
  const [path] = useLocation()
  const address = `${path}?${useParameters()}`
  const previous = useRef(address)
  useEffect(() => {
    if (address === previous.current) return
    previous.current = address
    callback()
  })
}
