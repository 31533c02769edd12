package main

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
)

// device is a device near a NUMA node, or without a known NUMA node.
type device struct {
	ID   string `json:"id"`
	NUMA *int   `json:"numa"`
}

// devicePlugin is a device plugin in this process. The device manager chooses among equal devices at random; this
// plugin prefers the NUMA nodes with the fewest available devices, then the lowest NUMA node, then the lowest id.
type devicePlugin struct {
	pluginapi.DevicePluginClient
	resource string
	numa     map[string]int // NUMA node of each device that has one
}

func (plugin *devicePlugin) API() pluginapi.DevicePluginClient { return plugin }
func (plugin *devicePlugin) Resource() string                  { return plugin.resource }
func (plugin *devicePlugin) SocketPath() string                { return "" }

func (plugin *devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty, ...grpc.CallOption) (
	*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (plugin *devicePlugin) Allocate(context.Context, *pluginapi.AllocateRequest, ...grpc.CallOption) (
	*pluginapi.AllocateResponse, error) {
	empty := []*pluginapi.ContainerAllocateResponse{{}}
	return &pluginapi.AllocateResponse{ContainerResponses: empty}, nil
}

func (plugin *devicePlugin) GetPreferredAllocation(_ context.Context, request *pluginapi.PreferredAllocationRequest,
	_ ...grpc.CallOption) (*pluginapi.PreferredAllocationResponse, error) {
	asked := request.ContainerRequests[0]
	available := slices.DeleteFunc(slices.Clone(asked.AvailableDeviceIDs), func(id string) bool {
		return slices.Contains(asked.MustIncludeDeviceIDs, id)
	})
	counts := map[int]int{}
	for _, id := range available {
		counts[plugin.zone(id)]++
	}
	slices.SortFunc(available, func(a, b string) int {
		first, second := plugin.zone(a), plugin.zone(b)
		if first == second {
			return cmp.Compare(a, b)
		}
		if first < 0 || second < 0 { // devices without a NUMA node are last
			return cmp.Compare(second, first)
		}
		return cmp.Or(cmp.Compare(counts[first], counts[second]), cmp.Compare(first, second))
	})
	chosen := append(slices.Clone(asked.MustIncludeDeviceIDs), available...)[:asked.AllocationSize]
	return &pluginapi.PreferredAllocationResponse{
		ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: chosen}},
	}, nil
}

// zone returns the NUMA node of a device, -1 if it has none.
func (plugin *devicePlugin) zone(id string) int {
	if found, ok := plugin.numa[id]; ok {
		return found
	}
	return -1
}

// addDevices registers a device plugin for each resource.
func addDevices(ctx context.Context, manager *devicemanager.ManagerImpl, resources map[string][]device) error {
	for resource, devices := range resources {
		plugin := &devicePlugin{resource: resource, numa: map[string]int{}}
		var listed []*pluginapi.Device
		for _, one := range devices {
			found := &pluginapi.Device{ID: one.ID, Health: pluginapi.Healthy}
			if one.NUMA != nil {
				plugin.numa[one.ID] = *one.NUMA
				found.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(*one.NUMA)}}}
			}
			listed = append(listed, found)
		}
		if err := manager.PluginConnected(ctx, resource, plugin); err != nil {
			return err
		}
		manager.PluginListAndWatchReceiver(klog.FromContext(ctx), resource,
			&pluginapi.ListAndWatchResponse{Devices: listed})
	}
	return nil
}
