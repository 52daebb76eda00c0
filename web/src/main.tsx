import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { createRootRoute, createRoute, createRouter, RouterProvider } from "@tanstack/react-router";
import { createRoot } from "react-dom/client";
import { BuilderPage } from "./BuilderPage";
import { ChainPage } from "./ChainPage";
import { Frame } from "./Frame";
import { HostPage } from "./HostPage";
import { InstancePage } from "./InstancePage";
import { MapPage } from "./MapPage";
import { NotificationsPage } from "./NotificationsPage";
import { TablePage } from "./TablePage";
import { WhyPage } from "./WhyPage";
import "./style.css";

const root = createRootRoute({ component: Frame, notFoundComponent: () => <p className="page">There is no such page.</p> });
const page = (path: string, component: () => React.ReactNode) => createRoute({ getParentRoute: () => root, path, component });

const router = createRouter({
  routeTree: root.addChildren([
    page("/", MapPage), page("/build", BuilderPage), page("/chain/$tenant/$name", ChainPage),
    page("/build/$tenant/$name", BuilderPage), page("/instance/$tenant/$name", InstancePage), page("/host/$name", HostPage),
    page("/why", WhyPage), page("/notifications", NotificationsPage), page("/list/$kinds", TablePage),
  ]),
});

createRoot(document.getElementById("root")!).render(
  <QueryClientProvider client={new QueryClient({ defaultOptions: { queries: { staleTime: 10_000, retry: 1 } } })}>
    <RouterProvider router={router} />
  </QueryClientProvider>,
);
