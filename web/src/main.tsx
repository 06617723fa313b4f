import { QueryClient, QueryClientProvider } from '@tanstack/react-query'
import { RouterProvider } from '@tanstack/react-router'
import { StrictMode } from 'react'
import { createRoot } from 'react-dom/client'
import { SignedIn } from './views/SignIn'
import { router } from './router'
import './style.css'

const queries = new QueryClient({ defaultOptions: { queries: { retry: 1, staleTime: 2_000 } } })
const root = document.getElementById('root')
if (!root) throw new Error('the page has no #root')
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <SignedIn>
        <RouterProvider router={router} />
      </SignedIn>
    </QueryClientProvider>
  </StrictMode>,
)
